"""Drafts copied from the context: where the last few tokens stood before, what followed then may follow again.

Prompt lookup decoding (Saxena 2023) costs no model at all and wins where answers repeat their prompt: summaries,
edits, code. It does not sample, so its q is one-hot and a draft x is accepted with probability p(x).
"""

from __future__ import annotations

import torch

from specdemo.drafters.base import Proposal, Stop
from specdemo.models.runner import Runner

LONGEST_MATCH = 4
SHORTEST_MATCH = 2


class PromptLookup:
    """Looks for the latest earlier occurrence of the longest matching n-gram, 4 tokens down to 2."""

    taps, longest_context = (), None

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.indexed = 0
        self.followed_at: dict[tuple[int, ...], int] = {}
        """n-gram -> position of the token that followed its latest occurrence."""

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        self._index(prompt)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        self._index(context)
        for n in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            at = self.followed_at.get(tuple(context[-n:]))
            if at is not None:
                return Proposal.certain(context[at : at + gamma], self.vocab_size, self.device)
        return Proposal.none(self.vocab_size, self.device, "no_match")

    def rollback(self, length: int) -> None:
        """Nothing to forget: only kept tokens are ever indexed."""

    def _index(self, context: list[int]) -> None:
        # An n-gram enters once its following token is known, so a context never matches its own end.
        for at in range(max(self.indexed, 1), len(context)):
            for n in range(SHORTEST_MATCH, LONGEST_MATCH + 1):
                if at >= n:
                    self.followed_at[tuple(context[at - n : at])] = at
        self.indexed = len(context)
