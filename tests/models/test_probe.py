"""Whatever a target or a draft cannot do is found when it is loaded, in a sentence that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from specdemo.errors import UserError
from specdemo.models.block import Block
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.measure import BUSY
from specdemo.models.probe import probe
from specdemo.models.transformers_runner import TransformersLanguageModel
from tests.test_loading import load, save_model
from tests.tiny import Tiny

SMALL = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def gpt2(seed: int = 1) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=64, n_embd=16, n_layer=2, n_head=2)).eval()


def refused(folder: Path, other: Path, match: str) -> None:
    """As a target and as a draft."""
    for pair in ((folder, None), (other, folder)):
        with pytest.raises(UserError, match=match):
            load(*pair)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return save_model(tmp_path / "sound", seed=2)


@pytest.mark.parametrize("where", ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, sound: Path, where: str) -> None:
    folder = save_model(tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights[where][-1] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, sound, "broken computes with fp32 weights that are not finite numbers")


def test_numbers_that_are_too_large_for_the_precision_are_refused() -> None:
    model, info = gpt2(), Tiny(8, 1)._info.model_copy(update={"dtype": "fp16"})
    torch.nn.init.constant_(model.transformer.ln_f.weight, 1e5)
    with pytest.raises(UserError, match="too large for this precision: fetch them again, or give --dtype fp32"):
        probe(TransformersLanguageModel(model.half(), info, 8))


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    folder = save_model(tmp_path / "cut", words, rows=56)
    refused(folder, save_model(tmp_path / "whole", words, rows=60), "cut has 56 rows .* go up to 59")


def test_rows_that_a_config_promises_and_the_weights_lack_are_noticed(tmp_path: Path, sound: Path) -> None:
    folder = save_model(tmp_path / "lying")
    change(folder, vocab_size=12)
    refused(folder, sound, r"lying could not be loaded: embedding .* \(8, 16\), where its config.json says \(12, 16\)")
    change(folder, vocab_size=8, hidden_size=32)
    refused(folder, sound, r"input_layernorm.weight is \(16,\), where config.json or other weights say \(32,\)")
    change(folder, hidden_size=16, num_attention_heads=4)
    refused(folder, sound, "lying cannot be decoded with: a short trial ended with RuntimeError")
    change(folder, num_attention_heads="two")
    refused(folder, sound, "lying could not be loaded")


def change(folder: Path, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_a_vocabulary_with_a_hole_keeps_its_highest_ids(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "t", rows=16)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["h"] = 12
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load(folder).target.vocab_size == 13


@pytest.mark.parametrize("kind", ["lfm2", "lfm2_moe"])
def test_layers_that_keep_a_state_are_refused(tmp_path: Path, sound: Path, kind: str) -> None:
    layers = {"layer_types": ["conv", "full_attention"]}
    if kind == "lfm2":
        model = Lfm2ForCausalLM(Lfm2Config(**SMALL, **HEADS, **layers, pad_token_id=0))
    else:
        experts = {"moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
        ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
        model = Lfm2MoeForCausalLM(Lfm2MoeConfig(**SMALL, **HEADS, **layers, **experts, **ids))
    folder = save_model(tmp_path / kind, model=model)
    refused(folder, sound, f"{kind} keeps a state that cannot be rolled back")


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (
            lambda: BertLMHeadModel(BertConfig(**SMALL, num_attention_heads=2)),
            "is an encoder, no causal language model",
        ),
        (lambda: T5ForConditionalGeneration(T5Config(vocab_size=8, d_model=16, num_layers=1)), "is an encoder"),
    ],
    ids=["bert", "t5"],
)
def test_encoders_are_refused(tmp_path: Path, sound: Path, model: Callable[[], PreTrainedModel], match: str) -> None:
    refused(save_model(tmp_path / "encoder", model=model()), sound, match)


def test_a_missing_or_renamed_weight_is_named_and_not_random(tmp_path: Path, sound: Path) -> None:
    folder = save_model(tmp_path / "gpt2", model=gpt2())
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.other.weight"] = weights.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, sound, r"gpt2 lacks 1 of its weights, among them transformer\.h\.1\.mlp\.c_fc\.weight")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"n_embd": 32}, r"gpt2 holds transformer\.h\.0\.attn\.c_attn\.bias as \(48,\), where .* describes \(96,\)"),
        ({"n_positions": 32}, r"gpt2 holds transformer\.wpe\.weight as \(64, 16\), where .* describes \(32, 16\)"),
        ({"n_layer": 1}, r"gpt2 holds more layers than .* describes, among their weights transformer\.h\.1\.attn"),
        ({"n_layer": 3}, r"gpt2 lacks 12 of its weights, among them transformer\.h\.2\.attn"),
    ],
)
def test_a_config_that_describes_another_model_is_told_from_the_weights(
    tmp_path: Path, sound: Path, said: dict, match: str
) -> None:
    folder = save_model(tmp_path / "gpt2", model=gpt2())
    change(folder, **said)
    refused(folder, sound, match)


def test_weights_beside_those_of_a_model_do_not_matter(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "gpt2", model=gpt2())
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"vision.h.0.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).target.vocab_size == 8


@pytest.mark.parametrize("kind", ["lean", "transformers"])
def test_whole_numbers_in_place_of_weights_are_refused(tmp_path: Path, sound: Path, kind: str) -> None:
    folder = save_model(tmp_path / "small", model=None if kind == "lean" else gpt2())
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "mlp" in name and name.endswith(".weight"))
    weights[name] = weights[name].to(torch.int8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, sound, rf"small holds {re.escape(name)} as I8: it is quantised, which is not computed here")


# --- The trial itself ---


def wrapped(model: PreTrainedModel) -> TransformersLanguageModel:
    return TransformersLanguageModel(model.eval(), Tiny(8, 1)._info, model.config.vocab_size)


@pytest.mark.parametrize(
    "model",
    [
        gpt2,
        lambda: BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=16, n_layer=1, n_head=2)),
        lambda: MistralForCausalLM(MistralConfig(**SMALL, **HEADS, sliding_window=6)),
        lambda: OlmoForCausalLM(OlmoConfig(**SMALL, **HEADS, pad_token_id=0)),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=2, n_embd=16, n_layer=1, n_head=2)),
    ],
    ids=["learned positions", "alibi", "window", "rope", "two positions"],
)
def test_sound_models_pass(model: Callable[[], PreTrainedModel]) -> None:
    probe(wrapped(model()))


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 20, 64])
def test_models_of_any_length_and_precision_pass(length: int) -> None:
    probe(Tiny(8, 1, max_length=length).lean)
    info = Tiny(8, 1)._info.model_copy(update={"dtype": "bf16"})
    probe(TransformersLanguageModel(gpt2().bfloat16(), info, 8))


def test_a_model_that_looks_ahead_fails() -> None:
    with pytest.raises(UserError, match=r"tiny says something else .* no causal language model"):
        probe(wrapped(BertLMHeadModel(BertConfig(**SMALL, num_attention_heads=2, initializer_range=0.5))))


def test_a_cache_that_forgets_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DynamicCache, "crop", lambda cache, tokens: None)
    with pytest.raises(UserError, match="tiny"):
        probe(Tiny(8, 1).transformers)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_cache_that_keeps_one_token_too_many_or_too_few_fails(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(runner: LeanRunner, length: int, slots: list[int]) -> None:
        runner.cache.lengths = [length + len(slots) + off]

    monkeypatch.setattr(LeanRunner, "keep", keep)
    with pytest.raises(UserError, match=r"tiny (says something else|cannot be decoded with)"):
        probe(Tiny(8, 1).lean)


def test_a_state_that_survives_a_rollback_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution's: the last token fed colours the next pass, whether it was kept or not."""
    right, state = Block.feed, {}

    def feed(block: Block, x: torch.Tensor) -> torch.Tensor:
        before, state[block] = state.get(block, torch.zeros_like(x[:, -1:])), x[:, -1:]
        return right(block, x + 0.2 * torch.cat((before, x[:, :-1]), dim=1))

    monkeypatch.setattr(Block, "feed", feed)
    with pytest.raises(UserError, match="keeps a state beside keys and values"):
        probe(Tiny(8, 1).lean)


# --- Positions that are rotated anew where a text grows ---


def long_rope() -> Phi3ForCausalLM:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 100.0}
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None}
    lengths = {"max_position_embeddings": 128, "original_max_position_embeddings": 32}
    torch.manual_seed(1)
    return Phi3ForCausalLM(Phi3Config(**SMALL, **HEADS, **ids, **lengths, rope_parameters=rope, initializer_range=0.5))


def dynamic_rope() -> LlamaForCausalLM:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS, max_position_embeddings=32, rope_parameters=rope))


@pytest.mark.parametrize("model", [long_rope, dynamic_rope])
def test_texts_end_before_their_positions_are_rotated_anew(
    tmp_path: Path, model: Callable[[], PreTrainedModel]
) -> None:
    made = model().eval()
    loaded = load(save_model(tmp_path / "t", model=made), save_model(tmp_path / "d", seed=2))
    assert loaded.target.max_length == 32
    runner, text = loaded.target.runner(64), [1, 2, 3]
    runner.prefill(text[:-1])
    while len(text) < runner.capacity:
        text.append(int(runner.forward(text[-1:])[0].argmax()))
    with torch.inference_mode():
        expected = made.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=29, do_sample=False, eos_token_id=None)
    assert text == expected[0].tolist()


def lasting(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """What is said of a pair, whatever else this machine has to do meanwhile."""
    return tuple(text for text in warnings if text != BUSY)


def test_a_context_that_is_cut_short_is_told(tmp_path: Path) -> None:
    loaded = load(save_model(tmp_path / "phi", model=long_rope()))
    assert lasting(loaded.warnings) == (
        "phi reads 32 tokens here, prompt and answer together, instead of 128: beyond them it rotates all positions "
        "anew, and nothing that is cached would be right.",
    )
    assert lasting(load(save_model(tmp_path / "plain")).warnings) == ()
