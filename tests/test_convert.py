"""Published heads are converted, loaded, and compute what their publishers' code computes."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from specdemo.cli import app
from specdemo.decoding.gamma import Fixed
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.drafters.eagle import Eagle
from specdemo.drafters.medusa import Medusa
from specdemo.errors import UserError
from specdemo.models.cache import KVCache
from specdemo.models.files import kind_of
from specdemo.models.heads import Head, load_head, mismatch
from specdemo.models.medusa import MedusaHeads
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings
from tests import published as layouts
from tests.published import LAYERS, LLAMA_CONFIG, VOCAB, Published
from tests.test_exactness import emitted
from tests.tiny import Tiny

TARGET = Tiny(VOCAB, seed=5, layers=LAYERS)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 11]
MEDUSA_CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
SHARED_CONFIG = {"num_heads": 2, "num_hidden_layers": 2, "hidden_size": 16, "vocab_size": VOCAB}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA_CONFIG}

PUBLISHED = {
    "EAGLE": Published("pytorch_model.bin", LLAMA_CONFIG, layouts.eagle(1, bias=True, embedding=True)),
    "EAGLE without bias": Published("model.safetensors", LLAMA_CONFIG | {"bias": False}, layouts.eagle(2)),
    "EAGLE in pieces": Published("pytorch_model.bin.index.json", LLAMA_CONFIG, layouts.eagle(3, bias=True)),
    "EAGLE for vLLM": Published(
        "model.safetensors",
        {"model_type": "eagle", "model": LLAMA_CONFIG},
        layouts.eagle(4, bias=True, embedding=True, output=True, norm=True),
        prefix="model.",
        extra={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)},
    ),
    "EAGLE-3": Published("pytorch_model.bin", LLAMA_CONFIG, layouts.eagle3(5)),
    "EAGLE-3 with an embedding": Published("model.safetensors", LLAMA_CONFIG, layouts.eagle3(6, embedding=True)),
    "EAGLE-3 of the whole vocabulary": Published("other.bin", LLAMA_CONFIG, layouts.eagle3(7, whole=True)),
    "EAGLE-3 without d2t": Published("pytorch_model.bin", LLAMA_CONFIG, layouts.eagle3(15), dropped=("d2t",)),
    "EAGLE-3 for SGLang": Published(
        "model.safetensors",
        LLAMA_CONFIG | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4, 6]}},
        layouts.eagle3(8),
        renamed={"midlayer.": "layers.0."},
        prefix="model.",
        taps=(1, 5, 7),
    ),
    "EAGLE-3 of vLLM's Speculators": Published(
        "model.safetensors",
        SPECULATORS | {"eagle_aux_hidden_state_layer_ids": [1, 5, 7], "norm_before_residual": True},
        layouts.eagle3(9, embedding=True),
        renamed={"midlayer.": "layers.0."},
        taps=(1, 5, 7),
        norm_first=True,
    ),
    "Medusa": Published("medusa_lm_head.pt", MEDUSA_CONFIG, layouts.medusa(10, heads=5, blocks=1)),
    "Medusa with tied blocks": Published("medusa_lm_head.pt", {}, layouts.medusa(11, heads=3, blocks=2, tied=True)),
    "Medusa of the first kind": Published("medusa_lm_head.pt", {}, layouts.medusa(12, heads=3, blocks=1, own=False)),
    "Medusa with its model": Published(
        "model.safetensors",
        MEDUSA_CONFIG,
        layouts.medusa(13, heads=3, blocks=1),
        prefix="medusa_head.",
        extra={"model.norm.weight": torch.ones(16), "lm_head.weight": torch.ones(VOCAB, 16)},
    ),
    "Medusa for vLLM": Published(
        "model.safetensors",
        SHARED_CONFIG,
        layouts.medusa(14, heads=2, blocks=2, bias=False),
        renamed={
            f"{head}.{part}": theirs
            for head in range(2)
            for part, theirs in (
                ("0.linear", f"blocks.{head}.layers.0"),
                ("1.linear", f"blocks.{head}.layers.1"),
                ("2", f"lm_heads.{head}"),
            )
        },
    ),
}


def publish(published: Published, folder: Path) -> Path:
    """The checkpoint on disk as a user downloads it."""
    folder.mkdir()
    tensors, file = published.tensors, folder / published.file
    (folder / "README.md").write_text("a head")
    if published.config:
        (folder / "config.json").write_text(json.dumps(published.config))
    if file.suffix == ".safetensors":
        save_file({name: value.clone() for name, value in tensors.items()}, file)
    elif file.suffix == ".json":
        where = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(tensors)}
        file.write_text(json.dumps({"metadata": {}, "weight_map": where}))
        for part in set(where.values()):
            torch.save({name: value for name, value in tensors.items() if where[name] == part}, folder / part)
    else:
        torch.save(tensors, file)
    return folder


def convert(source: Path | str, out: Path) -> Result:
    return CliRunner().invoke(app, ["convert", str(source), str(out)], catch_exceptions=False)


def converted(name: str, tmp_path: Path, target: LanguageModel) -> Head:
    done = convert(publish(PUBLISHED[name], tmp_path / "published"), tmp_path / "head")
    assert done.exit_code == 0, done.output
    return load_head(tmp_path / "head", target, torch.float32)


def steps_of(head: Head, target: LanguageModel, drafts: int) -> tuple[torch.Tensor, list[int]]:
    """(logits behind TEXT and behind each of a few drafted tokens, those tokens), through the head's cache."""
    runner = target.runner(32, taps=head.taps)
    runner.prefill(TEXT[:-1])
    cache, draft = KVCache(head, 32), []
    states = head.forward(head.states(runner.features), torch.tensor(TEXT[1:]), cache)[-1:]
    rows = [head.logits(states)]
    for _ in range(drafts):
        # Neither the best token every time nor always the same: what a tree would contain.
        draft.append(int(head.target_ids(rows[-1][0].topk(2).indices[len(draft) % 2])))
        states = head.forward(states, torch.tensor(draft[-1:]), cache)
        rows.append(head.logits(states))
    return torch.cat(rows), draft


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_converted_head_computes_what_its_publisher_computes(name: str, runner: str, tmp_path: Path) -> None:
    target = getattr(TARGET, runner)
    head, published = converted(name, tmp_path, target), PUBLISHED[name]
    if isinstance(head, MedusaHeads):
        states = target.runner(32, taps=head.taps)
        states.prefill(TEXT)
        found, expected = head.logits(states.features[-1]), layouts.medusa_logits(published, TARGET.oracle, TEXT)
    else:
        found, draft = steps_of(head, target, 4)
        expected = layouts.eagle_logits(published, TARGET.oracle, TEXT, draft)
        if "d2t" in published.weights:
            assert head.target_ids(torch.arange(found.shape[1])).tolist() == layouts.DRAFT_IDS
    # fp32 against fp64 through five steps, each reading the last one's state: of the largest logit, as rounding is.
    torch.testing.assert_close(found.double(), expected, atol=1e-3 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_text_drafted_by_a_converted_head_is_the_targets_own(name: str, runner: str, tmp_path: Path) -> None:
    target = getattr(TARGET, runner)
    head = converted(name, tmp_path, target)
    drafter = (Medusa if isinstance(head, MedusaHeads) else Eagle)(head, VOCAB, TreeShape(depth=3, nodes=10))
    request = Request(TEXT, SamplerSettings(temperature=0), 24, decode=str)
    text = emitted(speculative(target, drafter, request, Fixed(3), 48))
    oracle = TARGET.oracle.generate(torch.tensor([TEXT]), max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert list(text) == oracle[0, len(TEXT) :].tolist()


@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("EAGLE")])
def test_a_tree_has_the_probabilities_that_its_publisher_computes(name: str, runner: str, tmp_path: Path) -> None:
    """Through the drafter: states in the target's cache, a text read in two parts, nodes behind their own ancestors."""
    target, published = getattr(TARGET, runner), PUBLISHED[name]
    drafter = Eagle(converted(name, tmp_path, target), VOCAB, TreeShape(depth=3, nodes=8))
    states = target.runner(48, taps=drafter.taps)
    states.prefill(TEXT[:-3])
    drafter.prefill(TEXT[:-2], states, lambda: False)
    drafter.propose(TEXT[:-2], 3, lambda: False)
    states.prefill(TEXT[-3:-1])
    proposal = drafter.propose(TEXT, 3, lambda: False)
    assert max(proposal.tree.depth(node) for node in range(len(proposal))) > 0
    ids = proposal.ids.tolist()
    for node, chance in enumerate(proposal.chances):
        path = [ids[i] for i in proposal.tree.path(node)]
        probs = layouts.eagle_logits(published, TARGET.oracle, TEXT, path[:-1]).softmax(-1)
        rows = layouts.DRAFT_IDS if "d2t" in published.weights else range(VOCAB)
        expected = [float(probs[depth, rows.index(token)]) for depth, token in enumerate(path)]
        assert chance == pytest.approx(math.prod(expected), rel=1e-2, abs=1e-6)


def test_the_folder_says_what_it_is_and_keeps_the_weights_dtype(tmp_path: Path) -> None:
    half = Published("model.safetensors", LLAMA_CONFIG, {k: v.half() for k, v in layouts.eagle(1).items()})
    done = convert(publish(half, tmp_path / "published"), tmp_path / "new" / "head")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "new" / "head"
    assert kind_of(folder) == "eagle"
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.float16}
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert [path.name for path in folder.parent.iterdir()] == ["head"]
    assert mismatch(folder, TARGET.lean) == ""


def test_a_medusa_config_that_names_too_few_heads_does_not_hide_the_others(tmp_path: Path) -> None:
    assert len(converted("Medusa", tmp_path, TARGET.lean)) == 5


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"rope_theta": None}, {"rope_type": "default", "rope_theta": 10000.0}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 100},
        ),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rope_theta": 7.0}),
    ],
)
def test_rotations_of_old_and_new_configs_are_understood(tmp_path: Path, said: dict, expected: dict) -> None:
    weights = Published("pytorch_model.bin", LLAMA_CONFIG | said, layouts.eagle(1))
    done = convert(publish(weights, tmp_path / "published"), tmp_path / "head")
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "head" / "config.json").read_text())["rope_parameters"]
    assert expected.items() <= written.items()
    load_head(tmp_path / "head", TARGET.lean, torch.float32)


# --- What cannot be converted, or does not fit ---


class Bomb:
    """Creates a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def refused(source: Path | str, out: Path) -> str:
    done = convert(source, out)
    assert done.exit_code == 2
    return " ".join(done.output.split())


def test_code_in_a_pickle_is_never_run(tmp_path: Path) -> None:
    folder = publish(PUBLISHED["Medusa"], tmp_path / "published")
    tensors = PUBLISHED["Medusa"].tensors | {"bomb": Bomb(tmp_path / "ran")}
    torch.save(tensors, folder / "medusa_lm_head.pt")
    assert "not a pickle of plain tensors" in refused(folder, tmp_path / "head")
    (folder / "medusa_lm_head.pt").write_bytes(pickle.dumps(tensors, protocol=2))
    assert "not a pickle of plain tensors" in refused(folder, tmp_path / "head")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "head").exists()
    pickle.loads((folder / "medusa_lm_head.pt").read_bytes())
    assert (tmp_path / "ran").exists(), "the bomb was none"


def _without(name: str, weights: dict) -> dict:
    return {key: value for key, value in weights.items() if key != name}


BIN = "pytorch_model.bin"
EAGLE, EAGLE3 = layouts.eagle(1), layouts.eagle3(1)
BAD = {
    "unknown names": (Published(BIN, {}, {"encoder.weight": torch.ones(2)}), "no head that is known here"),
    "a whole model": (Published(BIN, LLAMA_CONFIG, dict(Tiny(5, 1).oracle.state_dict())), "--target or --draft"),
    "a weight is missing": (
        Published(BIN, LLAMA_CONFIG, _without("layers.0.mlp.up_proj.weight", EAGLE)),
        "layers.0.mlp.up_proj.weight is missing",
    ),
    "two layers": (
        Published(BIN, LLAMA_CONFIG, EAGLE | {"layers.1.mlp.up_proj.weight": torch.ones(2)}),
        "layers.1.mlp.up_proj.weight is no weight of such a head",
    ),
    "no config": (Published(BIN, {}, EAGLE), 'neither "num_attention_heads" nor "head_dim"'),
    "another's config": (Published(BIN, LLAMA_CONFIG | {"hidden_size": 32}, EAGLE), "does not belong to these weights"),
    "another activation": (Published(BIN, LLAMA_CONFIG | {"hidden_act": "gelu"}, EAGLE), 'only "silu" is computed'),
    "another rotation": (
        Published(BIN, LLAMA_CONFIG | {"rope_scaling": {"type": "swirl", "factor": 2.0}}, EAGLE),
        '"swirl", which is not known here',
    ),
    "a variant": (Published(BIN, LLAMA_CONFIG | {"norm_before_fc": True}, EAGLE3), '"norm_before_fc", which is not'),
    "a vocabulary that is not named": (
        Published(BIN, LLAMA_CONFIG, _without("t2d", _without("d2t", EAGLE3))),
        "knows 9 of 12 tokens",
    ),
    "a vocabulary without its output layer": (
        Published(BIN, LLAMA_CONFIG, _without("lm_head.weight", EAGLE3)),
        '"d2t" names the 9 tokens of an output layer, and there is none',
    ),
    "a vocabulary of nobody knows what": (
        Published(BIN, _without("vocab_size", LLAMA_CONFIG), _without("t2d", _without("d2t", EAGLE3))),
        "knows 9 of an unknown number of tokens",
    ),
    "no numbers": (
        Published(BIN, LLAMA_CONFIG, EAGLE | {"fc.weight": EAGLE["fc.weight"] * math.nan}),
        "holds fc.weight with numbers that are not finite",
    ),
    "whole numbers": (
        Published(BIN, LLAMA_CONFIG, EAGLE | {"fc.weight": EAGLE["fc.weight"].to(torch.int8)}),
        "fc.weight holds int8: it is quantised",
    ),
    "converted before": (Published("model.safetensors", {"head": "eagle"}, EAGLE), "in this project's form already"),
    "no tensors": (Published(BIN, {}, {"fc.weight": [1.0]}), "something else than named tensors"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_checkpoint_that_cannot_be_converted_is_explained(case: str, tmp_path: Path) -> None:
    published, message = BAD[case]
    assert message in refused(publish(published, tmp_path / "published"), tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_a_source_that_is_no_checkpoint_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, empty = tmp_path / "head", tmp_path / "empty"
    empty.mkdir()
    assert "There is no folder" in refused(tmp_path / "nowhere", out)
    assert "has no weights" in refused(empty, out)
    (empty / BIN).write_bytes(b"not a checkpoint")
    assert "not a pickle of plain tensors" in refused(empty, out)
    assert "is a file. Give the folder" in refused(empty / BIN, out)
    (empty / BIN).write_bytes((publish(PUBLISHED["EAGLE"], tmp_path / "published") / BIN).read_bytes()[:-200])
    assert "damaged or cut short" in refused(empty, out)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "could not be fetched from the hub" in refused("nobody/no-such-head", out)
    assert not out.exists()


def test_a_hub_id_is_fetched_with_its_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = publish(PUBLISHED["EAGLE-3"], tmp_path / "published"), []

    def fetch(source: str, allow_patterns: list[str]) -> str:
        asked.append((source, allow_patterns))
        return str(folder)

    monkeypatch.setattr("specdemo.models.convert.snapshot_download", fetch)
    assert convert("someone/EAGLE3", tmp_path / "head").exit_code == 0
    assert asked == [("someone/EAGLE3", ["*.json", "*.safetensors", "*.bin", "*.pt"])]


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "head"
    out.mkdir()
    folder = publish(PUBLISHED["EAGLE"], tmp_path / "published")
    assert convert(folder, out).exit_code == 0
    assert "is not empty" in refused(folder, out)


def spoilt(tmp_path: Path, name: str, spoil) -> Path:
    """A converted head whose weights were changed afterwards."""
    folder = tmp_path / "head"
    convert(publish(PUBLISHED[name], tmp_path / "published"), folder)
    weights = load_file(folder / "model.safetensors")
    spoil(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("EAGLE-3", lambda w: w.pop("d2t"), "its output layer knows 9 tokens, and the target has 12"),
        ("EAGLE-3", lambda w: w.pop("lm_head.weight"), 'its output layer knows 12 tokens, and "d2t" names 9'),
        ("EAGLE-3", lambda w: w["norm.weight"].mul_(math.nan), "holds norm.weight with numbers that are not finite"),
        ("Medusa", lambda w: w.update({f"{i}.1.weight": w[f"{i}.1.weight"][:7].clone() for i in range(5)}), "knows 7"),
        ("Medusa", lambda w: w["0.1.weight"][3].fill_(math.inf), "holds 0.1.weight with numbers that are not finite"),
        ("EAGLE", lambda w: w.update({"fc.weight": w["fc.weight"].to(torch.int8)}), "fc.weight as I8: it is quantised"),
    ],
    ids=["no names", "no output layer", "nan", "too few rows", "infinite", "int8"],
)
def test_a_head_with_spoilt_weights_is_refused_with_a_sentence(tmp_path: Path, name: str, spoil, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_head(spoilt(tmp_path, name, spoil), TARGET.lean, torch.float32)


def test_a_head_too_large_for_the_precision_is_refused(tmp_path: Path) -> None:
    folder = spoilt(tmp_path, "EAGLE", lambda w: w["fc.weight"].fill_(1e6))
    with pytest.raises(UserError, match="too large for this precision"):
        load_head(folder, TARGET.lean, torch.float16)


@pytest.mark.parametrize("name", ["EAGLE", "EAGLE without bias", "EAGLE-3", "Medusa", "Medusa of the first kind"])
def test_a_head_of_another_width_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    convert(publish(PUBLISHED[name], tmp_path / "published"), tmp_path / "head")
    wide = Tiny(VOCAB, seed=5, layers=LAYERS, width=24)
    for target in (wide.lean, wide.transformers):
        with pytest.raises(UserError, match="made for a model of another width"):
            load_head(tmp_path / "head", target, torch.float32)


def test_a_head_of_another_vocabulary_or_depth_is_refused_with_a_sentence(tmp_path: Path) -> None:
    convert(publish(PUBLISHED["EAGLE-3 with an embedding"], tmp_path / "published"), tmp_path / "head")
    convert(publish(PUBLISHED["EAGLE-3"], tmp_path / "published3"), tmp_path / "head3")
    with pytest.raises(UserError, match="embeds 12 tokens, and the target has 20"):
        load_head(tmp_path / "head", Tiny(20, 5, layers=LAYERS).lean, torch.float32)
    with pytest.raises(UserError, match="up to id 11, and the target has 8"):
        load_head(tmp_path / "head3", Tiny(8, 5, layers=LAYERS).lean, torch.float32)
    with pytest.raises(UserError, match=r"depths \(2, 1, -1\), and the target has 2 layers"):
        load_head(tmp_path / "head3", Tiny(VOCAB, 5).lean, torch.float32)
