"""GGUF files, as llama.cpp and LM Studio have them: converted once to a model folder in the cache.

transformers reads the file's metadata and unpacks its weights to fp32. What it would leave out without a word (scaled
rotary positions, how text is cut, ends of text, weights that it has no place for) is put right here or refused, since
the text would be another model's.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specdemo.errors import UserError
from specdemo.models.device import free_memory
from specdemo.models.files import has_weights, sha256_of
from specdemo.models.kept import find, keep
from specdemo.models.progress import Progress, silent
from specdemo.models.splitting import set_rule
from specdemo.models.tokens import load_tokenizer

_ROPE_FACTORS = "rope_freqs.weight"  # where Llama 3 files keep by what each rotation is slowed down
_ENDS = ("eos", "eot", "eom")
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""What llama.cpp too takes for an end of text wherever it is a control token, since many files name but one."""
_PADDING = re.compile(r"\[PAD\d+\]")  # what llama.cpp's converter calls rows without a token
_CONTROL = 3  # the kind of token, as GGUF numbers them
_DAMAGE = (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError)  # what a torn file makes of parsing


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a path means: itself, or the one in a folder without safetensors. None where there is none.

    Raises UserError for a folder with several, of which nobody knows which is meant.
    """
    if path.is_file():
        return path
    if not path.is_dir() or has_weights(path):
        return None
    # "mmproj" files are the eyes of a model, not a language model.
    found = sorted(file for file in path.glob("*.gguf") if not file.name.startswith("mmproj"))
    if len(found) > 1:
        parts = all(re.search(r"-\d{5}-of-\d{5}\.gguf$", file.name) for file in found)
        raise UserError(
            _is_split(found[0], len(found))
            if parts
            else f"{path} holds several GGUF files ({', '.join(file.name for file in found)}): name the one you mean."
        )
    return found[0] if found else None


def converted(gguf: Path, progress: Progress = silent) -> Path:
    """A folder with the file's model in transformers' format, made the first time and kept by the file's sha256.

    Raises UserError for what is no whole GGUF file or no model that transformers reads from one.
    """
    try:
        facts = gguf.stat()
        sha256 = _sha256(gguf, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{gguf} cannot be read ({error.strerror}).") from error
    name = f"gguf-{sha256[:16]}"
    if folder := find(name, sha256):
        return folder
    progress(f"Reading {gguf.name}", None)
    reader = opened(gguf)
    unpacked = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)

    def make(work: Path) -> Path:
        if free_memory(torch.device("cpu")) < 2 * unpacked:
            raise UserError(
                f"{gguf.name} takes {2 * unpacked / 1e9:.0f} GB of memory to be unpacked once, and this machine has "
                "less free. Choose a smaller model."
            )
        progress(f"Converting {gguf.name} (once)", None)
        return convert(gguf, reader, work / "made")

    return keep(name, sha256, gguf.name, int(1.1 * unpacked), make)


def convert(gguf: Path, reader: GGUFReader, folder: Path) -> Path:
    """Write the file's model and tokenizer in transformers' format, weights unpacked to fp32.

    Raises UserError for a kind of model that transformers does not read from GGUF, or not wholly.
    """
    kind = _field(reader, "general.architecture")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        AutoConfig.from_pretrained(**source)
    except _DAMAGE as error:
        raise UserError(
            f"{gguf.name} holds a model of the kind {kind!r}, which transformers does not read from GGUF files. Give "
            "the folder with the model's safetensors instead."
        ) from error
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, output_loading_info=True)
        tokenizer = load_tokenizer(**source)
    except (*_DAMAGE, RuntimeError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(f"{gguf.name} could not be converted: {first} Fetch it again, or give safetensors.") from error
    _set_rule(gguf, reader, tokenizer)
    if missing := sorted(loading["missing_keys"]):
        raise UserError(f"{gguf.name} lacks weights, among them {missing[0]}. Fetch it again.")
    held = sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name != _ROPE_FACTORS)
    if held != model.num_parameters():
        raise UserError(
            f"{gguf.name} holds {held:,} weights, of which transformers reads {model.num_parameters():,}: it would be "
            "another model. Give the folder with the model's safetensors instead."
        )
    # transformers refuses to save a model that it read from GGUF, though it is plain fp32 by now.
    config = type(model.config)(**model.config.to_diff_dict() | {"architectures": [type(model).__name__]})
    del config.quantization_config
    _set_rope(gguf, reader, kind, config)
    config.bos_token_id, config.eos_token_id = _field(reader, "tokenizer.ggml.bos_token_id"), _ends(reader)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    folder.mkdir()
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _mend_tokenizer(folder / "tokenizer.json", len(_field(reader, "tokenizer.ggml.tokens")))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@lru_cache
def _sha256(gguf: Path, size: int, modified: int) -> str:
    """Of a file that has not changed meanwhile: one of many gigabytes is read once in a process."""
    return sha256_of(gguf)


def opened(gguf: Path) -> GGUFReader:
    """The file's tables and a view of its weights. Raises UserError where it is damaged or one part of several."""
    try:
        reader = GGUFReader(gguf)
        reader.fields["general.architecture"].contents()
    except _DAMAGE as error:
        raise UserError(f"{gguf} is no GGUF file, or is damaged or cut short ({error}). Fetch it again.") from error
    if (parts := _field(reader, "split.count") or 1) > 1:
        raise UserError(_is_split(gguf, parts))
    return reader


def _is_split(gguf: Path, parts: int) -> str:
    return (
        f"{gguf.name} is one of {parts} parts of a model: join them first (llama-gguf-split --merge {gguf.name} "
        "whole.gguf), then give the whole file."
    )


def _field(reader: GGUFReader, key: str):
    """A value of the file's metadata; None where it has none of that name."""
    return reader.fields[key].contents() if key in reader.fields else None


def _ends(reader: GGUFReader) -> list[int]:
    """Every id that ends a text."""
    named = {_field(reader, f"tokenizer.ggml.{end}_token_id") for end in _ENDS} - {None}
    tokens, kinds = _field(reader, "tokenizer.ggml.tokens") or [], _field(reader, "tokenizer.ggml.token_type") or []
    known = {
        id
        for id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _CONTROL and token in _TURN_ENDS
    }
    return sorted(named | known)


def _set_rule(gguf: Path, reader: GGUFReader, tokenizer) -> None:
    """Cut text as the file says. Raises UserError for a rule that is not known, as ids would be others."""
    if _field(reader, "tokenizer.ggml.model") != "gpt2":  # others do not cut by expressions
        return
    rule = _field(reader, "tokenizer.ggml.pre") or ""
    if not set_rule(tokenizer.backend_tokenizer, rule):
        raise UserError(
            f"{gguf.name} cuts text into words by a rule ({rule!r}) that is not known here. Give the folder with the "
            "model's safetensors instead."
        )


def _mend_tokenizer(file: Path, tokens: int) -> None:
    """Take out tokens that are none: those that transformers' class adds to the file's, and the file's own padding.

    A vocabulary is padded to the rows of the embedding, so models of one family would seem to have different ones.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < tokens]
    vocab = content["model"]["vocab"]
    if isinstance(vocab, dict):
        content["model"]["vocab"] = {token: id for token, id in vocab.items() if not _PADDING.fullmatch(token)}
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _set_rope(gguf: Path, reader: GGUFReader, kind: str, config: PreTrainedConfig) -> None:
    """Scale rotary positions as the file says, which transformers does not ask it.

    Raises UserError for a scaling that its config has no words for.
    """
    scaling, factor = (_field(reader, f"{kind}.rope.scaling.{name}") for name in ("type", "factor"))
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # where layers differ, the scaling is that of those without a window
    factors = next((tensor.data for tensor in reader.tensors if tensor.name == _ROPE_FACTORS), None)
    if factors is not None:
        slowed = torch.tensor(factors)
        plain, _ = ROPE_INIT_FUNCTIONS["linear"](_with_rope(config, rope | {"rope_type": "linear", "factor": 1.0}))
        found = {
            "rope_type": "llama3",
            "factor": float(slowed.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        guessed, _ = ROPE_INIT_FUNCTIONS["llama3"](_with_rope(config, rope | found))
        if not torch.allclose(guessed, plain / slowed, rtol=1e-3):
            raise UserError(_unknown_rope(gguf, "by factors of its own"))
        rope.update(found)
    elif scaling == "linear" and factor:
        rope.update({"rope_type": "linear", "factor": factor})
    elif scaling == "yarn" and factor:
        original = _field(reader, f"{kind}.rope.scaling.original_context_length")
        rope.update({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original})
    elif scaling not in (None, "none"):
        raise UserError(_unknown_rope(gguf, repr(scaling)))


def _with_rope(config: PreTrainedConfig, rope: dict) -> PreTrainedConfig:
    return type(config)(**config.to_diff_dict() | {"rope_parameters": rope})


def _unknown_rope(gguf: Path, how: str) -> str:
    return (
        f"{gguf.name} scales its rotary positions {how}, which cannot be read from GGUF files here. Give the folder "
        "with the model's safetensors instead."
    )
