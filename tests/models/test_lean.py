"""The lean forward against transformers, family by family, and what its cache promises."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.cache import KVCache
from specdemo.models.graphs import RecordedPasses
from specdemo.models.layers import RMSNorm
from specdemo.models.lean import LeanModel
from specdemo.models.lean_runner import LeanLanguageModel, LeanRunner
from specdemo.models.loading import LoadedPair, is_lean
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import ROOT, Tree
from tests.tiny import CPU, Tiny

SIZE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZE, tie_word_embeddings=False)),
    "llama, tied": (LlamaForCausalLM, LlamaConfig(**SIZE, tie_word_embeddings=True)),
    "llama, every bias": (LlamaForCausalLM, LlamaConfig(**SIZE, attention_bias=True, mlp_bias=True)),
    "llama, rope llama3": (LlamaForCausalLM, LlamaConfig(**SIZE, rope_parameters=LLAMA3)),
    "llama, rope linear": (LlamaForCausalLM, LlamaConfig(**SIZE, rope_parameters=LINEAR)),
    "llama, no groups": (LlamaForCausalLM, LlamaConfig(**SIZE | {"num_key_value_heads": 4})),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZE, sliding_window=None)),
    "mistral, window": (MistralForCausalLM, MistralConfig(**SIZE, sliding_window=80, head_dim=24)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZE, tie_word_embeddings=True)),
    "qwen2, rope yarn": (Qwen2ForCausalLM, Qwen2Config(**SIZE, rope_parameters=YARN)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZE, head_dim=32)),
}


def random_model(family: str) -> PreTrainedModel:
    kind, config = FAMILIES[family]
    torch.manual_seed(3)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # ones and zeros would hide a norm or bias that is left out
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return model


def lean(model: PreTrainedModel) -> LeanLanguageModel:
    info = ModelInfo(name="random", parameters=0, dtype="fp32")
    return LeanLanguageModel(LeanModel(model.config, dict(model.state_dict()), CPU, torch.float32), info, 96)


@pytest.mark.parametrize("family", FAMILIES)
def test_lean_logits_and_states_are_transformers(family: str) -> None:
    model = random_model(family)
    assert is_lean(model.config)
    ids = torch.randint(96, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    taps = (1, model.config.num_hidden_layers + 1)
    runner = lean(model).runner(128, taps=taps)
    logits = torch.cat([runner.forward(part) for part in (ids[:1], ids[1:9], ids[9:])])
    with torch.inference_mode():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    torch.testing.assert_close(logits, out.logits[0], atol=1e-3, rtol=1e-3)
    states = torch.cat((out.hidden_states[1], out.hidden_states[-1]), dim=-1)[0]
    torch.testing.assert_close(runner.features, states, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "left_out"), [("qwen2", "bias"), ("qwen3", "[qk]_norm"), ("llama, every bias", "down_proj.bias")]
)
def test_a_left_out_part_would_show(family: str, left_out: str) -> None:
    model = random_model(family)
    weights = {name: value for name, value in model.state_dict().items() if not re.search(left_out, name)}
    ids = torch.randint(96, (1, 20), generator=torch.Generator().manual_seed(1))
    maimed = LeanLanguageModel(LeanModel(model.config, weights, CPU, torch.float32), lean(model).info, 96)
    with torch.inference_mode():
        assert (maimed.runner(32).forward(ids[0]) - model(ids).logits[0]).abs().max() > 1e-2


def test_a_sliding_window_bounds_the_context() -> None:
    assert lean(random_model("mistral, window")).max_length == 80
    assert lean(random_model("mistral")).max_length == 256


def test_a_quantised_checkpoint_is_not_taken_for_a_plain_one() -> None:
    config = LlamaConfig(**SIZE)
    config.quantization_config = {"quant_method": "fp8"}
    assert not is_lean(config)
    weights = dict(random_model("llama").state_dict()) | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}
    with pytest.raises(ValueError, match="weight_scale is no weight of a Llama block"):
        LeanModel(LlamaConfig(**SIZE), weights, CPU, torch.float32)


def test_a_scaling_that_depends_on_the_length_goes_through_transformers() -> None:
    assert not is_lean(LlamaConfig(**SIZE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))
    assert not is_lean(LlamaConfig(**SIZE, hidden_act="gelu"))


def test_the_real_target_agrees_with_transformers_too(default_pair: LoadedPair) -> None:
    from transformers import AutoModelForCausalLM

    from specdemo.models.wheel import default_target

    ids = default_pair.tokens.encode("Write a haiku about the sea, then explain it.", chat=True)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(default_target()).eval()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(default_pair.target.runner(64).forward(ids), expected, atol=1e-3, rtol=1e-3)


# --- Rows of different lengths ---


def test_rows_of_a_batch_advance_by_their_own_lengths() -> None:
    """Three rows are rolled back to different lengths and go on; each equals a runner of its own."""
    model = lean(random_model("qwen3"))
    texts = torch.randint(96, (3, 12), generator=torch.Generator().manual_seed(5))
    batch = model.runner(40, batch=3)
    batch.forward(texts)
    batch.rollback([12, 5, 9])
    more = torch.randint(96, (3, 4), generator=torch.Generator().manual_seed(6))
    together = [batch.forward(more[:, :1]), batch.forward(more[:, 1:])]
    assert batch.lengths == [16, 9, 13]
    for row, kept in enumerate((12, 5, 9)):
        alone = model.runner(40)
        alone.prefill(texts[row, :kept].tolist())
        expected = [alone.forward(more[row, :1]), alone.forward(more[row, 1:])]
        torch.testing.assert_close(
            torch.cat([part[row] for part in together]), torch.cat(expected), atol=1e-4, rtol=1e-4
        )


# --- Recorded passes, with a recorder that works on any device: what a CUDA graph records is the same function ---


def replayable(once):
    """Runs the function again into the same results, as a graph does."""
    results = once()

    def replay() -> None:
        for kept, new in zip(results, once(), strict=True):
            kept.copy_(new)

    return torch.inference_mode()(replay), results


def test_recorded_passes_give_what_the_plain_forward_gives() -> None:
    model = lean(random_model("qwen3"))
    ids = torch.randint(96, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    plain = model.runner(64, taps=TAPS)
    recorded = RecordedPasses(model.model, KVCache(model.model, 64, taps=TAPS), replayable)
    recorded.prepare([1, 3], 64)
    replayed = LeanRunner(model, recorded.cache, 64, recorded)
    assert recorded.knows(1)
    assert not recorded.knows(2)
    for runner in (plain, replayed):
        runner.prefill(ids[:10])
    at = 10
    for k in (1, 3, 1, 2, 3, 1, 1):  # a pass over 2 was not recorded and runs plainly
        for again in (False, True):  # rolled back and repeated: nothing of the first time may remain
            outputs = [runner.forward(ids[at : at + k]) for runner in (plain, replayed)]
            torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(plain.features, replayed.features, atol=1e-4, rtol=1e-4)
            if not again:
                for runner in (plain, replayed):
                    runner.rollback(at)
        at += k
    assert plain.length == replayed.length == at


def test_caches_and_recordings_are_used_again_and_only_the_largest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lean(random_model("llama"))
    monkeypatch.setattr(model, "_recorder", lambda: replayable)
    monkeypatch.setattr("specdemo.models.lean_runner._ROOMS", (32, 64, 128))
    first = model.runner(40, passes=[1])
    first.prefill([1, 2, 3])
    cache = first.cache
    expected = first.forward([4]).clone()
    del first
    again = model.runner(50, passes=[1])
    assert again.cache is cache
    assert again.length == 0
    again.prefill([1, 2, 3])
    torch.testing.assert_close(again.forward([4]), expected)
    others = [model.runner(capacity, passes=[1]) for capacity in (60, 100, 100, 100)]
    assert [other.cache.capacity for other in others] == [64, 128, 128, 128]
    del again, others
    assert [idle.cache.capacity for idle in model._idle] == [128, 128, 128]


def test_recordings_are_made_for_every_span_that_a_text_may_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.models.graphs._SPANS", (16, 32))
    model = lean(random_model("llama"))
    recorded = RecordedPasses(model.model, KVCache(model.model, 100), replayable)
    recorded.prepare([1], 40)
    for length, known in ((0, True), (15, True), (16, True), (31, True), (39, True)):
        recorded.cache.lengths = [length]
        assert recorded.knows(1) is known
    assert {span for _, span, _ in recorded._recorded} == {16, 32, 100}


def test_a_pass_longer_than_the_cache_is_left_to_be_run_as_it_is() -> None:
    """Of a model with a short context, the longest passes do not fit."""
    model = lean(random_model("llama"))
    recorded = RecordedPasses(model.model, KVCache(model.model, 16), replayable)
    recorded.prepare(range(1, 18), 16, trees=(9, 17))
    assert recorded.knows(16)
    assert not recorded.knows(17)
    assert recorded.knows(9, tree=True)
    assert not recorded.knows(10, tree=True)
    recorded.cache.lengths = [12]
    assert not recorded.knows(5)


def test_recorded_trees_give_what_the_plain_forward_gives() -> None:
    """Of any shape up to the size that was recorded, in turn with chains, each behind what was kept of the last one;
    near the cache's end, where the filled-up tree has no room, passes run plainly."""
    model = lean(random_model("qwen3"))
    ids = torch.randint(96, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    recorded = RecordedPasses(model.model, KVCache(model.model, 64, taps=TAPS), replayable)
    recorded.prepare([1, 3], 64, trees=(9, 17))
    runners = (model.runner(64, taps=TAPS), LeanRunner(model, recorded.cache, 64, recorded))
    for runner in runners:
        runner.prefill(ids[:20])
    chain = Tree((ROOT, 0, 1))
    wide = Tree((ROOT, *(0,) * 10))
    at, replayed = 20, []
    for tree, kept in (
        (BRANCHING, [1, 5]),
        (wide, [0, 7]),
        (chain, [0, 1, 2]),
        (BRANCHING, []),
        (wide, [0]),
        *[(wide, [0, 1])] * 12,
    ):
        k, length = len(tree), runners[0].length
        if length + k > 64:
            break
        replayed.append(recorded.knows(k, tree=True))
        outputs = [runner.forward(ids[at : at + k], tree) for runner in runners]
        torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
        for runner in runners:
            runner.keep(length, [length + node for node in kept])
        torch.testing.assert_close(runners[0].features, runners[1].features, atol=1e-4, rtol=1e-4)
        outputs = [runner.forward(ids[at : at + 3]) for runner in runners]
        torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
        at += k
    assert replayed[:5] == [True] * 5
    assert not replayed[-1]


def test_the_nodes_that_fill_a_tree_up_are_seen_by_nobody() -> None:
    """Whatever ids are left in their places from an earlier pass."""
    model = lean(random_model("llama"))
    recorded = RecordedPasses(model.model, KVCache(model.model, 64), replayable)
    recorded.prepare([], 64, trees=(9,))
    runner = LeanRunner(model, recorded.cache, 64, recorded)
    runner.prefill([1, 2, 3])
    first = runner.forward([4, 5, 6], Tree((ROOT, 0, 0))).clone()
    runner.rollback(3)
    runner.forward([9] * 8, Tree((ROOT,) * 8))
    runner.rollback(3)
    torch.testing.assert_close(runner.forward([4, 5, 6], Tree((ROOT, 0, 0))), first)


def test_caches_are_kept_for_each_reader_of_states_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small caches without recordings, as a load leaves them, displace nothing; nor does one head's run another's. A
    NaN that a run leaves behind does not reach the next one."""
    model = lean(random_model("llama"))
    monkeypatch.setattr(model, "_recorder", lambda: replayable)
    monkeypatch.setattr("specdemo.models.graphs.TREES", (9,))
    monkeypatch.setattr("specdemo.models.lean_runner.TREES", (9,))
    lanes = [model.runner(40, passes=[1], taps=taps) for taps in ((), (), (), (1,), (1,), (0, 3))]
    caches = {id(lane.cache) for lane in lanes}
    lanes[0].prefill([1, 2, 3])
    expected = lanes[0].forward([4]).clone()
    lanes[0].cache.stored.fill_(torch.nan)
    del lanes
    for taps in ((), (1,), (0, 3)):
        small = [model.runner(8, taps=taps) for _ in range(4)]
        del small
    again = [model.runner(40, passes=[1], taps=taps) for taps in ((0, 3), (1,), (1,), (), (), ())]
    assert {id(lane.cache) for lane in again} == caches
    for lane in again:
        lane.prefill([1, 2, 3])
        torch.testing.assert_close(lane.forward([4]), expected)


# --- Trees ---

TAPS = (0, 1, 3)
BRANCHING = Tree((ROOT, ROOT, 0, 0, 2, 1))
"""Two children of the text; the first has two children and a grandchild, the second one."""


@pytest.mark.parametrize("kind", ["lean", "transformers"])
def test_a_node_of_a_tree_sees_its_own_branch_only(kind: str) -> None:
    """Every node's logits are those of the text and its ancestors alone, in a plain chain."""
    model = getattr(Tiny(8, seed=4), kind)
    prompt, nodes = [3, 1, 4, 1, 5], [2, 6, 5, 3, 7, 0]
    runner = model.runner(64)
    runner.prefill(prompt)
    out = runner.forward(nodes, BRANCHING)
    for node, path in {0: [0], 1: [1], 2: [0, 2], 3: [0, 3], 4: [0, 2, 4], 5: [1, 5]}.items():
        alone = model.runner(64)
        expected = alone.forward([*prompt, *(nodes[i] for i in path)])[-1]
        torch.testing.assert_close(out[node], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["lean", "transformers"])
def test_keeping_a_path_leaves_the_cache_of_a_chain(kind: str) -> None:
    model: LanguageModel = getattr(Tiny(8, seed=4), kind)
    prompt, nodes = [3, 1, 4, 1, 5], [2, 6, 5, 3, 7, 0]
    runner, chain = model.runner(64), model.runner(64)
    runner.prefill(prompt)
    runner.forward(nodes, BRANCHING)
    runner.keep(5, [5, 7, 9])  # the path 0, 2, 4
    chain.prefill([*prompt, 2, 5, 7])
    assert runner.length == chain.length == 8
    torch.testing.assert_close(runner.forward([1, 2]), chain.forward([1, 2]), atol=1e-4, rtol=1e-4)


def test_a_chain_is_the_tree_of_width_one() -> None:
    model = Tiny(8, seed=4).lean
    tree, chain = model.runner(32), model.runner(32)
    for runner in (tree, chain):
        runner.prefill([3, 1, 4])
    assert torch.equal(tree.forward([1, 5, 2], Tree((ROOT, 0, 1))), chain.forward([1, 5, 2]))


@pytest.mark.parametrize("kind", ["lean", "transformers"])
def test_features_are_rolled_back_and_kept_with_the_cache(kind: str) -> None:
    tiny = Tiny(8, seed=4)
    runner, fresh = getattr(tiny, kind).runner(32, taps=TAPS), tiny.lean.runner(32, taps=TAPS)
    runner.prefill([3, 1, 4])
    runner.forward([1, 1])
    runner.rollback(3)
    runner.forward([2, 6, 5, 3, 7, 0], BRANCHING)
    runner.keep(3, [3, 5, 7])  # the path 0, 2, 4
    fresh.prefill([3, 1, 4, 2, 5, 7])
    assert runner.features.shape == (6, 3 * 16)
    torch.testing.assert_close(runner.features, fresh.features, atol=1e-4, rtol=1e-4)


def test_what_leaves_the_last_layer_is_told_where_it_can_be() -> None:
    tiny = Tiny(8, seed=4)
    runner = tiny.lean.runner(16, taps=(2, 3))
    runner.prefill([1, 2, 3])
    before, after = runner.features.chunk(2, dim=-1)
    torch.testing.assert_close(tiny.lean.model.norm(before), after)
    with pytest.raises(UserError, match="last layer"):
        tiny.transformers.runner(16, taps=(2,))


# --- Weights ---


def test_weights_are_taken_out_of_the_checkpoint_while_they_are_fused() -> None:
    model = random_model("qwen3")
    weights = dict(model.state_dict())
    LeanModel(model.config, weights, CPU, torch.float32)
    assert not [name for name in weights if name.startswith("model.layers")]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_norm_of_few_calls_is_torchs(scale: float) -> None:
    x, weight = torch.randn(2, 5, 64) * scale, torch.randn(64)
    expected = torch.nn.functional.rms_norm(x, (64,), weight, 1e-5)
    torch.testing.assert_close(RMSNorm(weight, 1e-5)(x), expected, atol=1e-5, rtol=1e-5)
    half = RMSNorm(weight.bfloat16(), 1e-5)(x.bfloat16())
    torch.testing.assert_close(half.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", ["lean", "transformers"])
def test_what_is_not_in_a_cache_cannot_be_kept(kind: str) -> None:
    runner = getattr(Tiny(8, 1), kind).runner(16)
    runner.prefill([1, 2, 3, 4])
    for length in (-1, 5):
        with pytest.raises(ValueError, match="cannot be rolled back"):
            runner.rollback(length)
    for length, slots in ((2, [4]), (2, [1]), (5, [])):
        with pytest.raises(ValueError, match="cannot be kept behind"):
            runner.keep(length, slots)
    assert runner.length == 4


def test_a_child_before_its_parent_is_no_tree() -> None:
    with pytest.raises(ValueError, match="no parents of a tree"):
        Tree((1, ROOT))
