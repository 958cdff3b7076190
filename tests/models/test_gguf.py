"""GGUF files are read as what they are: the same model, tokenizer and ends of text, or a sentence says why not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import Qwen2Config, Qwen2ForCausalLM

from specdemo.errors import UserError
from specdemo.models import gguf, kept
from specdemo.models.files import STAMP, sha256_of
from specdemo.training.target import load_target
from tests.gguf_files import TOKENS, write_gguf
from tests.test_loading import load, save_model
from tests.tiny import Tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def require_same_model(oracle, path: Path) -> None:
    target = load(path).target
    ids = [2, 3, 6, 4, 5]
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(target.runner(16).forward(ids), expected, atol=1e-4, rtol=1e-4)


def test_a_file_is_the_model_that_it_was_made_from(tmp_path: Path) -> None:
    file, draft = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle), write_gguf(tmp_path / "d.gguf", Tiny(8, 2).oracle)
    require_same_model(Tiny(8, 1).oracle, file)
    loaded = load(file, draft)
    assert (loaded.target.info.name, loaded.target.info.sha256) == ("t", sha256_of(file))
    assert (loaded.draft.info.name, loaded.draft.info.sha256) == ("d", sha256_of(draft))


def test_another_architecture_is_read_too(tmp_path: Path) -> None:
    torch.manual_seed(3)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=8, num_hidden_layers=2, max_position_embeddings=64, **small)
    model = Qwen2ForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.q_proj.bias)
    require_same_model(model, write_gguf(tmp_path / "q.gguf", model, "qwen2"))


def test_tokens_ends_of_text_and_chat_template_are_kept(tmp_path: Path) -> None:
    tokens = load(write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle)).tokens
    assert tokens.encode("abc", chat=False) == [6, 4]
    assert tokens.encode("a</s>", chat=True)[-1] == 6
    assert tokens.tokenizer.encode("a<|eot_id|>") == [2, 7]
    assert tokens.eos_ids == {1, 7}  # the token that the file names, and the one that ends a turn


PIECES = ["<s>", "</s>", "Ċ", "Ġ", "1", "2", "3", ".", "a", "ĊĊ", "ĠĠ", "12", "Ġ1", "Ġa", "..", "Ġ.", "a.", "123"]
MERGES = ["Ċ Ċ", "Ġ Ġ", "1 2", "Ġ 1", "Ġ a", ". .", "Ġ .", "a .", "12 3"]


@pytest.mark.parametrize(
    ("rule", "text", "pieces"),
    [
        ("smollm", "\n\n1.", "ĊĊ 1 ."),
        ("smollm", "a  1 12", "a ĠĠ 1 Ġ 1 2"),
        ("refact", "  a123", "Ġ Ġa 1 2 3"),
        ("gpt-2", "\n\n1.", "Ċ Ċ 1 ."),
        ("gpt-2", "a  1 12", "a Ġ Ġ1 Ġ 12"),
        ("default", "a 12..", "a Ġ 12 .."),
        (None, "a 123", "a Ġ 123"),
        ("falcon", "a. 1", "a . Ġ1"),
        ("qwen2", "\n\n12", "ĊĊ 1 2"),
        ("stablelm2", "\n\n12", "ĊĊ 1 2"),
        ("llama-bpe", "\n\n123", "ĊĊ 123"),
        ("glm4", "\n\n123", "ĊĊ 123"),
        ("deepseek-coder", "\n\n12 a", "Ċ Ċ 1 2 Ġa"),
    ],
)
def test_text_is_cut_by_the_files_rule(tmp_path: Path, rule: str | None, text: str, pieces: str) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(len(PIECES), 1).oracle, tokens=PIECES, merges=MERGES, rule=rule)
    tokens = load(file).tokens
    assert tokens.tokenizer.convert_ids_to_tokens(tokens.encode(text, chat=False)) == pieces.split(" ")


def test_a_rule_of_cutting_text_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t.gguf cuts text into words by a rule \('kimi-k2'\) that is not known here"):
        load(write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle, rule="kimi-k2"))


@pytest.mark.parametrize(("rule", "pieces"), [("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])])
def test_a_token_that_no_merge_leads_to_is_found_where_the_rule_says_so(tmp_path: Path, rule: str, pieces) -> None:
    names = ["<s>", "</s>", "a", "b", "c", "abc", "ab", "d"]
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle, tokens=names, rule=rule)
    tokens = load(file).tokens
    assert tokens.tokenizer.convert_ids_to_tokens(tokens.encode("abc", chat=False)) == pieces


def test_what_an_older_version_made_of_a_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle)
    folder = gguf.converted(file)
    stamp = json.loads((folder / STAMP).read_text())
    del stamp["recipe"]
    (folder / STAMP).write_text(json.dumps(stamp))
    made, make = [], kept._make
    monkeypatch.setattr(kept, "_make", lambda *arguments: (made.append(1), make(*arguments)))
    assert gguf.converted(file) == gguf.converted(file) == folder
    assert made == [1]


def test_padding_is_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    """Neither the file's nor what transformers' tokenizers add: models of a family differ in it."""
    padded = write_gguf(tmp_path / "t.gguf", Tiny(12, 1).oracle, tokens=[*TOKENS, *(f"[PAD{i}]" for i in range(8, 12))])
    loaded = load(padded, write_gguf(tmp_path / "d.gguf", Tiny(8, 2).oracle))
    assert loaded.target.vocab_size == loaded.draft.vocab_size == 8
    assert set(loaded.tokens.tokenizer.get_vocab()) == set(TOKENS)


def test_a_folder_that_holds_one_is_that_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    file = write_gguf(folder / "t.gguf", Tiny(8, 1).oracle)
    (folder / "mmproj-t.gguf").write_bytes(b"eyes")
    assert load(folder).target.info.sha256 == sha256_of(file)
    save_model(folder)
    assert load(folder).target.info.sha256 == sha256_of(folder / "model.safetensors")


def test_a_file_can_be_trained_for(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle)
    assert load_target(str(file), "cpu").sha256 == load(file).target.info.sha256


def test_a_file_is_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle)
    folder = gguf.converted(file)
    monkeypatch.setattr(kept, "_make", lambda *_: pytest.fail("converted again"))
    assert gguf.converted(file) == folder
    assert not list(cache.glob("making-*"))


def test_a_conversion_that_fails_keeps_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "free_memory", lambda device: 10)
    with pytest.raises(UserError, match="GB of memory to be unpacked"):
        gguf.converted(write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle))
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_scaled_positions_are_read(tmp_path: Path, scaling: str) -> None:
    wide = Tiny(8, 1, width=64, max_length=64 if scaling == "linear" else 32768)
    model = wide.oracle
    rope = {"rope_type": scaling, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8192}
    if scaling == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model.config.rope_parameters = rope
    scaled = type(model)(model.config).eval()
    scaled.load_state_dict(model.state_dict())

    def more(writer: GGUFWriter) -> None:
        if scaling != "llama3":
            writer.add_string("llama.rope.scaling.type", scaling)
            writer.add_float32("llama.rope.scaling.factor", 4.0)
            writer.add_uint32("llama.rope.scaling.original_context_length", 8192)
            return
        plain = 10000.0 ** -(np.arange(0, 32, 2) / 32)
        factors = plain / scaled.model.rotary_emb.inv_freq.numpy()
        assert factors.max() > 3.9
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))

    require_same_model(scaled, write_gguf(tmp_path / "t.gguf", scaled, more=more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda writer: writer.add_string("llama.rope.scaling.type", "longrope"), "scales its rotary positions"),
        (lambda writer: writer.add_tensor("rope_freqs.weight", np.full(4, 3, np.float32)), "by factors of its own"),
        (lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(16, np.float32)), "of which transformers reads"),
        (lambda writer: writer.add_uint16("split.count", 3), "one of 3 parts .*llama-gguf-split --merge"),
    ],
    ids=["long rope", "own factors", "unknown weights", "split"],
)
def test_what_would_be_read_as_another_model_is_refused(tmp_path: Path, more, message: str) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle, more=more)
    with pytest.raises(UserError, match=message):
        load(file)


def test_a_kind_that_transformers_does_not_read_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle, kind="rwkv7")
    with pytest.raises(UserError, match=r"t.gguf holds a model of the kind 'rwkv7'"):
        load(file)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    model = Tiny(8, 1).oracle
    del model.model.layers[1].mlp.down_proj
    with pytest.raises(UserError, match=r"lacks weights, among them model.layers.1.mlp.down_proj"):
        load(write_gguf(tmp_path / "t.gguf", model))


def test_merges_of_tokens_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t.gguf could not be converted: .*Token `ad` out of vocabulary"):
        load(write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle, merges=["a d"]))


@pytest.mark.parametrize("kept_bytes", [0, 3, 30, 600, 2000, -1000, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept_bytes: int) -> None:
    file = write_gguf(tmp_path / "t.gguf", Tiny(8, 1).oracle)
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(UserError, match=r"t.gguf is no GGUF file, or is damaged or cut short"):
        load(file)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.gguf").write_bytes(b"not a model at all")
    with pytest.raises(UserError, match="no GGUF file"):
        load(tmp_path / "t.gguf")
    with pytest.raises(UserError, match="There is no file or folder"):
        load(tmp_path / "u.gguf")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.gguf", "b.gguf"), r"several GGUF files \(a.gguf, b.gguf\): name the one you mean"),
        (("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), r"a-00001-of-00002.gguf is one of 2 parts"),
    ],
)
def test_a_folder_with_several_files_names_them(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=message):
        load(tmp_path)
