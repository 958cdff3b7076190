"""How text is cut before its pieces become tokens, by the name that a GGUF file has for the rule.

Merges do not reach over a cut, so another rule gives other ids. transformers knows some of the names and takes GPT-2's
rule for all others, without a word. The names and rules are llama.cpp's.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_RULES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "mellum", "a.x-4.0"): (_GPT2,),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): (r"\p{N}", _GPT2),
    ("default", ""): (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ("falcon",): (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    ("stablelm2", "hunyuan", "solar-open"): (_QWEN2,),
    ("glm4", "chatglm-bpe"): (_LLAMA3,),
}
"""Each expression cuts what those before it left whole: a match stands alone, and so does what lies between two."""

_WHOLE = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
"""Where a piece that is a token stays one, though no merges lead to it."""


def set_rule(tokenizer: Tokenizer, name: str) -> bool:
    """Make a byte-level tokenizer that transformers read from a file cut text by the rule of that name; False where
    nobody here knows the rule."""
    tokenizer.model.ignore_merges = name in _WHOLE
    found = next((rule for names, rule in _RULES.items() if name in names), None)
    if found is not None:
        tokenizer.pre_tokenizer = _cutting(found)
    # transformers has put another one there for names of its own.
    return found is not None or not isinstance(tokenizer.pre_tokenizer, ByteLevel)


def _cutting(expressions: tuple[str, ...]) -> PreTokenizer:
    cuts = [Split(Regex(expression), "isolated") for expression in expressions]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
