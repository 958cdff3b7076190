"""What decoding needs of a model: weights that are shared, and runners that each own a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.tree import Tree

PREFILL_CHUNK = 256
"""Prompt tokens a pass: short enough that Stop is felt at once, long enough for full speed."""


def chunks(ids: list[int]) -> list[list[int]]:
    """A prompt in the pieces in which it is read."""
    return [ids[at : at + PREFILL_CHUNK] for at in range(0, len(ids), PREFILL_CHUNK)]


def require_behind(length: int, slots: list[int], end: int) -> None:
    """Raises ValueError unless all slots lie between the first `length` tokens of a cache and its end."""
    if not (0 <= length <= end and all(length <= slot < end for slot in slots)):
        raise ValueError(f"of a cache of {end} tokens, {slots} cannot be kept behind the first {length}")


class Runner(Protocol):
    """A model with one key/value cache. The cache's lengths are the state; nothing else changes between calls."""

    capacity: int
    """Tokens that a row of the cache can hold."""

    @property
    def features(self) -> Tensor:
        """States at the depths that were asked for (`taps`), of every token in the cache, [length, taps * width].

        They are part of the cache: what is rolled back or kept is so with them. Of a runner with one row.
        """
        ...

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row of the cache, [batch]."""
        ...

    @property
    def length(self) -> int:
        """Tokens in the cache, of a runner with one row."""
        ...

    def forward(self, ids: list[int] | Tensor, tree: Tree | None = None) -> Tensor:
        """Append k tokens, ids [k], or [batch, k] to every row of a batch. Ids may lie on the device already.

        Gives logits [(batch,) k, vocab] fp32, row i predicting the token behind token i; good until the next pass,
        which may write to the same memory. With a tree the tokens are its nodes, each behind its ancestors; `keep`
        must follow before anything else.
        """
        ...

    def prefill(self, ids: list[int] | Tensor) -> None:
        """Append tokens whose predictions nobody needs, ids as in `forward`."""
        ...

    def rollback(self, length: int | list[int]) -> None:
        """Forget every token from position `length` on, a number for each row of a batch."""
        ...

    def keep(self, length: int, slots: list[int]) -> None:
        """Keep the first `length` tokens and the later ones in `slots` (ascending), moved together; forget the rest."""
        ...


class LanguageModel(Protocol):
    """Weights, loaded once and shared by every runner made from them.

    vocab_size counts the tokens that can be predicted: padding rows of the embedding are cut off. vocab_ids, where
    a model predicts a reduced vocabulary, gives the target's id of each prediction, [vocab_size].
    """

    info: ModelInfo
    device: torch.device
    vocab_size: int
    vocab_ids: Tensor | None
    max_length: int
    depth: int
    """Layers."""
    takes_trees: bool
    """Whether passes over trees are right: not every architecture lets its mask be given from outside."""

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [..., width] of ids [...]."""
        ...

    def predict(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] fp32 of states after the last norm, [..., width]."""
        ...

    def runner(self, capacity: int, batch: int = 1, passes: Sequence[int] = (), taps: Sequence[int] = ()) -> Runner:
        """A fresh runner for up to `capacity` tokens a row (never more than max_length).

        passes: over how many tokens passes will mostly be; they are made ready now, where that is of use.
        taps: depths whose states `features` keeps: i is what enters layer i, `depth` what leaves the last layer,
        `depth + 1` the same after the last norm.
        """
        ...
