"""The default target's tokens are those of the rule in its GGUF file, worked out here by hand from its merges."""

from __future__ import annotations

import itertools
import json

import pytest
import regex
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdemo.models.datastore import load_datastore
from specdemo.models.loading import BUILT_IN_DRAFT_FOLDER
from specdemo.models.wheel import default_target
from tests.test_text import SAMPLES

RULE = (r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")
TEXTS = [
    *SAMPLES,
    *map(
        "".join,
        itertools.product(("", "a", "."), ("", " ", "    ", "\n\n", "\t", "\n \n"), ("1.", "23", "b", "½²", "٣")),
    ),
    *map("".join, itertools.product(("x", ")"), ("\n", "\n\n    ", " \n"), ("", "y", "7"), ("", " ", "\n\n"))),
    *(
        f"{word}{end}"
        for word in ("isn't", "I'LL", "naïve", "don’t", "日本語", "C++", "f(x)=1e-9", "🦜")
        for end in ("", "  8", "\n9")
    ),
]


class ByHand:
    """Cuts text by each expression in turn, then merges in the order of the file's merges."""

    def __init__(self, vocab: dict[str, int], merges: list) -> None:
        self.vocab, self.ranks = vocab, {tuple(pair): rank for rank, pair in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        pieces = [text]
        for expression in RULE:
            pieces = [part for piece in pieces for part in self._cut(expression, piece)]
        return [self.vocab[token] for piece in pieces for token in self._merge(piece) if token in self.vocab]

    @staticmethod
    def _cut(expression: str, piece: str) -> list[str]:
        borders = {0, len(piece)} | {at for match in regex.finditer(expression, piece) for at in match.span()}
        return [piece[start:end] for start, end in itertools.pairwise(sorted(borders))]

    def _merge(self, piece: str) -> list[str]:
        spelling = bytes_to_unicode()
        parts = [spelling[byte] for byte in piece.encode()]
        while True:
            pairs = [pair for pair in itertools.pairwise(parts) if pair in self.ranks]
            if not pairs:
                return parts
            at = list(itertools.pairwise(parts)).index(min(pairs, key=self.ranks.__getitem__))
            parts[at : at + 2] = ["".join(parts[at : at + 2])]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(default_target())


def test_tokens_are_those_of_the_files_rule(tokenizer) -> None:
    content = json.loads((default_target() / "tokenizer.json").read_text(encoding="utf-8"))
    by_hand = ByHand(content["model"]["vocab"], content["model"]["merges"])
    assert len(set(TEXTS)) > 150
    assert [text for text in TEXTS if tokenizer.encode(text) != by_hand.encode(text)] == []


def test_tokens_are_those_of_the_original(tokenizer) -> None:
    """As HuggingFaceTB's own tokenizer gives them."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n1.")) == ["ĊĊ", "1", "."]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("    1")) == ["ĠĠĠĠ", "1"]
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert tokenizer.encode("Café déjà vu.") == [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]


def test_what_retrieval_looks_for_is_spelled_as_the_target_writes(tokenizer) -> None:
    """Its store holds the ids that the target chose, so a prompt has to be cut as the target does it."""
    store = load_datastore(BUILT_IN_DRAFT_FOLDER / "text")
    target_writes, others_write = (
        tokenizer.convert_tokens_to_ids(names) for names in (["ĊĊ", "1", "."], ["Ċ", "Ċ", "1", "."])
    )
    assert tokenizer.encode("\n\n1.") == target_writes
    assert len(store.after(target_writes)) > 5 * len(store.after(others_write))
