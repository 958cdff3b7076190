"""What a pair is said to need is what it takes: counted here, told in a sentence where it is too much."""

from __future__ import annotations

import gc
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, LlamaConfig, LlamaForCausalLM, Qwen3Config

from specdemo.events import ModelInfo
from specdemo.models import files
from specdemo.models.kernels import Way
from specdemo.models.lean import LeanModel
from specdemo.models.lean_runner import LeanLanguageModel, LeanRunner
from specdemo.models.measure import Parts, _pieces
from specdemo.models.memory import (
    CHAINS,
    DRAFT_STEPS,
    DRAFTING,
    LANES,
    WARM_ROOM,
    HeadSize,
    Memory,
    Size,
    needed,
    read_head,
    read_size,
)
from specdemo.models.pairs import FIT, PAIRS, SIZES, Pair, own_pair, why_not
from tests.heads import heads_for
from tests.models.test_lean import replayable
from tests.test_loading import save_model
from tests.tiny import CPU, Tiny

HOPPER = 32 << 20  # bytes of a stream's workspace
MANY, FEW = {"kv": 8, "layers": 6, "vocab": 600}, {"kv": 1, "layers": 2, "vocab": 9000}
"""Most of the memory in caches, most in weights and logits."""


def config(kv: int, layers: int, vocab: int, width: int = 128) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=kv,
        tie_word_embeddings=False,
        max_position_embeddings=4096,
    )


def recording(shape: LlamaConfig) -> LeanLanguageModel:
    """A random model that records passes as on a GPU."""
    weights = LlamaForCausalLM(shape).state_dict()
    info = ModelInfo(name="random", parameters=0, dtype="fp32")
    model = LeanLanguageModel(LeanModel(shape, weights, CPU, torch.float32), info, shape.vocab_size)
    model._recorder = lambda: replayable
    return model


def parameters(shape: LlamaConfig) -> int:
    with torch.device("meta"):
        return LlamaForCausalLM(shape).num_parameters()


def held() -> dict[int, torch.UntypedStorage]:
    """Every storage that a tensor of this process lies in, by its address, which none of them gives up meanwhile."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu" and not tensor.is_mkldnn]
    return {storage.data_ptr(): storage for storage in storages}


def warmed_up(parts: Parts) -> list[LeanRunner]:
    """Runners as loading makes them on a GPU, one for each lane of a race."""
    taps = {head.taps for head in parts.heads.values()}
    lanes = [(parts.target, CHAINS, ())] * LANES + [(parts.target, CHAINS, taken) for taken in taps] * DRAFTING
    lanes += [(parts.draft, DRAFT_STEPS, ())] * DRAFTING
    return [model.runner(WARM_ROOM, passes=lengths, taps=taken) for model, lengths, taken in lanes]


@pytest.mark.parametrize("with_heads", [False, True], ids=["no heads", "heads"])
@pytest.mark.parametrize("shape", [MANY, FEW], ids=["many kv heads", "few"])
def test_the_estimate_is_within_a_tenth_of_what_is_held(
    shape: dict, with_heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that is made when a pair is loaded on a GPU, measuring its costs included."""
    monkeypatch.setattr("specdemo.models.layers.fastest", lambda *_: Way(kernel="plain"))
    large, small = config(**shape), config(kv=2, layers=1, vocab=shape["vocab"], width=64)
    before = held()
    target, draft = recording(large), recording(small)
    parts = Parts(target, draft, heads_for(target) if with_heads else {})
    runners = warmed_up(parts)
    del runners  # what was measured with is the same caches again
    pieces = _pieces(parts)
    counted = sum(storage.nbytes() for at, storage in held().items() if at not in before)
    del pieces

    width, vocab = large.hidden_size, large.vocab_size
    eagle = 13 * width**2 + (vocab - 1) * width + 4 * width
    medusa = vocab * width + 6 * (width**2 + width)
    sizes = {"eagle": eagle, "medusa": medusa}
    heads = [HeadSize(kind, sizes[kind], head.taps) for kind, head in parts.heads.items()]
    models = [Size.of(shape, parameters(shape)) for shape in (large, small)]
    estimated = needed(*models, heads, itemsize=4, workspace=HOPPER).tensors
    assert abs(estimated - counted) < 0.1 * counted, (estimated, counted)


TARGET = Size(10_000_000, 4, 2, 32, 1000, 64)
DRAFT = Size(1_000_000, 2, 1, 16, 1000, 32)
HEAD = HeadSize("eagle", 500_000, (1, 4), Size(0, 1, 1, 16, 1000, 32))


@pytest.mark.parametrize("workspace", [0, HOPPER], ids=["cpu", "gpu"])
def test_every_ingredient_makes_a_pair_larger(workspace: int) -> None:
    def total(target: Size = TARGET, draft: Size | None = DRAFT, heads=(HEAD,), itemsize: int = 2) -> int:
        return needed(target, draft, heads, itemsize, workspace).total

    plain = total()
    for name in ("parameters", "layers", "kv_heads", "head_dim", "vocab", "width"):
        assert total(replace(TARGET, **{name: 2 * getattr(TARGET, name)})) > plain, name
    for name in ("parameters", "layers", "kv_heads", "head_dim"):
        assert total(draft=replace(DRAFT, **{name: 2 * getattr(DRAFT, name)})) > plain, name
    assert total(replace(TARGET, context=512)) < plain
    assert total(draft=None) < plain
    assert total(itemsize=4) > plain
    assert total(heads=()) < plain
    assert total(heads=(replace(HEAD, parameters=600_000),)) > plain
    assert total(heads=(replace(HEAD, taps=(1, 2, 4)),)) > plain
    assert total(heads=(replace(HEAD, own=None),)) < plain


def test_a_gpu_takes_more_for_what_it_records() -> None:
    on_cpu, on_gpu = (needed(TARGET, DRAFT, [HEAD], 2, workspace) for workspace in (0, HOPPER))
    for name, size in asdict(on_gpu).items():
        assert size > (0 if name == "runs" else asdict(on_cpu)[name]) or name == "weights", name
    assert needed(TARGET, DRAFT, [HEAD], 2, 8 << 20).total < on_gpu.total
    assert on_gpu.total > on_gpu.kept > on_gpu.tensors
    assert on_cpu.kept == on_cpu.weights
    other = HeadSize("medusa", 500_000, HEAD.taps)  # reads the same states, in the same caches
    assert needed(TARGET, DRAFT, [HEAD, other], 2, HOPPER).caches == on_gpu.caches
    by_transformers = needed(replace(TARGET, lean=False), replace(DRAFT, lean=False), [], 2, HOPPER)
    assert by_transformers.graphs == by_transformers.caches == 0 < by_transformers.runs


def test_a_long_cache_of_many_heads_outweighs_small_weights() -> None:
    """Of SmolLM2-1.7B, each token takes 197 kB in 16 bits."""
    size = SIZES["HuggingFaceTB/SmolLM2-1.7B-Instruct"]
    assert size.cache_bytes(8192, 2) == pytest.approx(1.61e9, rel=0.01)


def test_sizes_come_from_configs_of_any_family() -> None:
    qwen = Qwen3Config(num_hidden_layers=3, num_key_value_heads=2, head_dim=16, vocab_size=96, hidden_size=64)
    assert Size.of(qwen, 5) == Size(5, 3, 2, 16, 96, 64, context=32768)
    assert Size.of(json.loads(qwen.to_json_string()), 5) == Size.of(qwen, 5)
    gemma = Size.of(Gemma3Config(), 5)
    assert (gemma.lean, gemma.layers) == (False, Gemma3Config().text_config.num_hidden_layers)
    assert Size.of({"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 64}, 5).kv_heads == 4


def test_the_size_of_a_folder_is_read_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "load_file", None)  # calling it would be a traceback
    folder = save_model(tmp_path / "model")
    expected = Size.of(Tiny(8, 1).oracle.config, Tiny(8, 1).oracle.num_parameters())
    assert read_size(folder) == expected
    pair = own_pair(str(folder), str(folder))
    assert pair.memory(4).weights > 8 * expected.parameters
    sharded = tmp_path / "sharded"
    Tiny(8, 1).oracle.save_pretrained(sharded, max_shard_size="5KB")
    assert read_size(sharded) == expected


def test_an_output_layer_that_a_tied_models_file_holds_once_more_is_not_counted(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    weights, told = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"tie_word_embeddings": True}))
    assert read_size(folder).parameters == Tiny(8, 1).oracle.num_parameters() - weights["lm_head.weight"].numel()


def test_the_built_in_heads_and_draft_are_known() -> None:
    pair = PAIRS["smollm2-135m"]
    heads = [
        read_head(Path("assets") / kind, SIZES["HuggingFaceTB/SmolLM2-135M-Instruct"]) for kind in files.HEAD_KINDS
    ]
    assert [head.taps for head in heads] == [(4, 12, 21, 30), (31,)]
    assert heads[0].own.layers == 1
    without = replace(pair, draft=None, heads=())
    parts = sum(head.parameters for head in heads) + read_size(Path("assets/draft")).parameters
    assert pair.memory(2).weights - without.memory(2).weights == 2 * parts


def test_what_nobody_knows_takes_nothing(tmp_path: Path) -> None:
    broken = save_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    stranger = save_model(tmp_path / "stranger")
    (stranger / "config.json").write_text('{"model_type": "no-such"}')
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for source in ("some/model", "/no/such/folder", str(broken), str(stranger), str(tmp_path / "model.gguf")):
        pair = own_pair(source, source)
        assert pair.memory(4, HOPPER) == Memory()
        assert "GB" not in why_not(pair, 1, 4, hub_offline=False)
    shutil.rmtree(broken)
    assert Pair("x", "x", "built-in:target", str(broken), (str(broken),)).memory(4).total > 0


def test_a_hub_id_of_the_registrys_is_known_in_a_pair_of_ones_own() -> None:
    assert own_pair("Qwen/Qwen3-8B", None).memory(2, HOPPER).weights == 2 * SIZES["Qwen/Qwen3-8B"].parameters


def test_the_sentence_names_what_is_missing() -> None:
    pair = PAIRS["qwen2.5-7b"]
    wanted = pair.memory(2, HOPPER).total / FIT
    assert why_not(pair, int(wanted) + 1, 2, False, HOPPER) == ""
    assert why_not(pair, int(wanted - 3.2e9), 2, False, HOPPER) == "needs 20 GB, 3.2 GB more than are free"
    assert why_not(pair, int(wanted) - 9, 2, False, HOPPER).endswith("0.1 GB more than are free")


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_every_pair_of_the_registry_is_known(pair: Pair) -> None:
    memory = pair.memory(2, HOPPER)
    known = [SIZES[source].parameters for source in (pair.target, pair.draft) if source in SIZES]
    assert memory.weights >= 2 * sum(known)
    assert memory.weights < memory.total < memory.weights + 5e9


def test_tokens_that_a_folder_saves_as_whole_numbers_are_no_parameters(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5, dtype=torch.bfloat16), "ids": torch.zeros(9, dtype=torch.int32)}, _file(tmp_path))
    assert files.element_counts(tmp_path) == {"a": 15}


def _file(folder: Path) -> Path:
    return folder / "model.safetensors"
