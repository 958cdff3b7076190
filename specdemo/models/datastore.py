"""Text that the target has written before, indexed by every short sequence of tokens in it (REST, He et al. 2023,
2311.08252)."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

LONGEST = 8
"""Tokens that the index is sorted by: the longest match that is looked for."""

_END = 0xFFFF  # stands between conversations; no token of a vocabulary of less than 65,535
_HALF = LONGEST // 2
_MOST = 256  # occurrences that are looked at


class Datastore:
    """Conversations as one sequence of ids, and its positions in the order of the eight tokens that begin there.

    Four tokens of 16 bits make one 64-bit key, so all positions that begin with the same n tokens lie side by side and
    are found by bisection, twice: by the first four tokens, then by the next four.
    """

    def __init__(self, rows: list[np.ndarray]) -> None:
        end = np.array([_END], np.uint16)
        self.ids = np.concatenate([part for row in rows for part in (row.astype(np.uint16), end)])
        padded = np.concatenate([self.ids, np.full(LONGEST, _END, np.uint16)])
        first, second = (_keys(padded[at:], len(self.ids)) for at in (0, _HALF))
        self._positions = np.lexsort((second, first)).astype(np.int32)
        self._first, self._second = first[self._positions], second[self._positions]

    def __len__(self) -> int:
        """Tokens of text."""
        return len(self.ids)

    def after(self, tokens: list[int]) -> np.ndarray:
        """Positions of what followed each occurrence of 1 to LONGEST tokens, at most some hundred of them."""
        head, tail = tokens[:_HALF], tokens[_HALF:]
        low, high = _bounds(self._first, 0, len(self._first), head)
        if tail:
            low, high = _bounds(self._second, low, high, tail)
        step = max(1, (high - low) // _MOST)
        return self._positions[low:high:step] + len(tokens)

    def likeliest(self, positions: np.ndarray, length: int) -> list[tuple[int, float]]:
        """The continuation that most of these positions agree on, up to `length` tokens: each with the share of those
        still following it (one more than there are is counted, so that a single witness is not certain)."""
        found: list[tuple[int, float]] = []
        for _ in range(length):
            positions = positions[positions < len(self.ids)]
            if not len(positions):
                break
            here = self.ids[positions]
            token, count = Counter(here.tolist()).most_common(1)[0]
            if token == _END:
                break
            found.append((token, count / (len(positions) + 1)))
            positions = positions[here == token] + 1
        return found


@cache
def load_datastore(folder: Path) -> Datastore | None:
    """The text in a folder of .npz files with `ids` [rows, length]; None where there is none."""
    rows = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as arrays:
            rows += list(arrays["ids"])
    return Datastore(rows) if rows else None


def _keys(ids: np.ndarray, count: int) -> np.ndarray:
    """Four tokens from each position on as one number that sorts as they do, [count] uint64."""
    keys = np.zeros(count, np.uint64)
    for at in range(_HALF):
        keys = keys << np.uint64(16) | ids[at : at + count].astype(np.uint64)
    return keys


def _bounds(keys: np.ndarray, low: int, high: int, tokens: list[int]) -> tuple[int, int]:
    """Where in keys[low:high] those lie that begin with up to four tokens."""
    value = 0
    for token in tokens:
        value = value << 16 | token
    free = 16 * (_HALF - len(tokens))
    least, most = np.uint64(value << free), np.uint64((value << free) + (1 << free) - 1)
    part = keys[low:high]
    return low + int(np.searchsorted(part, least, "left")), low + int(np.searchsorted(part, most, "right"))
