"""The border between decoding and every way to propose tokens.

A decoder knows two verbs: propose a continuation of these ids, and roll back to what was kept. Everything about
*how* to propose (own model, own cache, own length policy) stays behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdemo.events import NoDraft
from specdemo.models.device import to_device
from specdemo.models.runner import Runner
from specdemo.models.tree import Tree

Stop = Callable[[], bool]
"""Says that the run was stopped; asked between any two model calls."""


@dataclass(frozen=True)
class Proposal:
    """A draft of n tokens: ids [n], and q [n, vocab], the distributions that they were actually drawn from; q is None
    for a tree whose nodes were all chosen and not drawn: one-hot, without the zeros.

    tree: who stands behind whom; None is a chain. Siblings are tested in order, and each has the q that it was drawn
    from *after* its elder siblings: the same one for draws with replacement, one without the tokens already drawn for
    draws without, one-hot where it was chosen and not drawn. steps: model calls that the draft took, which may be one
    more than n where the last only showed that drafting on was no use. chances: where nodes were chosen, how likely the
    drafter thought each to be reached and accepted; for eyes, not for the decision. known: ids, where the drafter has
    them on the host already. why: of no draft, the reason (None
    where the run was stopped).
    """

    ids: Tensor
    q: Tensor | None
    steps: int = 0
    tree: Tree | None = None
    chances: list[float] | None = None
    why: NoDraft | None = None
    known: list[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, n: int) -> Proposal:
        """Its first n tokens. Parents and elder siblings come first, so what is left is a draft of its own."""
        if len(self) <= n:
            return self
        q = None if self.q is None else self.q[:n]
        chances = self.chances and self.chances[:n]
        tree, known = self.tree and self.tree.first(n), self.known and self.known[:n]
        return Proposal(self.ids[:n], q, self.steps, tree, chances, known=known)

    def on_host(self) -> list[int]:
        """The ids, waiting for them only where nobody has yet."""
        return self.ids.tolist() if self.known is None else self.known

    @classmethod
    def none(cls, vocab_size: int, device: torch.device, why: NoDraft | None = None, steps: int = 0) -> Proposal:
        """No draft, and why: the target decodes plainly this round."""
        ids, q = torch.zeros(0, dtype=torch.long, device=device), torch.zeros(0, vocab_size, device=device)
        return cls(ids, q, steps, why=why)

    @classmethod
    def certain(cls, ids: list[int], vocab_size: int, device: torch.device) -> Proposal:
        """A draft that was looked up, not sampled: every q is one-hot."""
        tensor = to_device(ids, device)
        q = torch.zeros(len(ids), vocab_size, device=device).scatter_(1, tensor[:, None], 1.0)
        return cls(tensor, q, known=ids)


class Drafter(Protocol):
    """One run's source of drafts. A fresh one is made for every run."""

    taps: tuple[int, ...]
    """Depths of the target whose states it drafts from, see `LanguageModel.runner`; empty for most."""
    longest_context: int | None
    """Tokens behind which it falls silent, because its own model can read no more; None where the target ends first."""

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        """Read the prompt (all but its last token may go into a cache).

        target: the lane's runner, which has read it already. A drafter that works from the target's states keeps it.
        """
        ...

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        """Draft up to `gamma` >= 1 tokens behind `context`; fewer, or none, where there is nothing worth proposing."""
        ...

    def rollback(self, length: int) -> None:
        """Only the first `length` tokens (context and accepted drafts) were kept: forget the rest."""
        ...
