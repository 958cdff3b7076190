"""Drafts copied from text that the target wrote earlier, for other prompts (REST, He et al. 2023, 2311.08252).

Prompt lookup searches this text, retrieval a library: no model drafts, only memory. It wins where a target repeats
itself from answer to answer, as it does in code and worked sums, and it shows what a trained drafter has to beat.
"""

from __future__ import annotations

import torch

from specdemo.drafters.base import Proposal, Stop
from specdemo.events import NoDraft
from specdemo.models.datastore import LONGEST, Datastore
from specdemo.models.runner import Runner

SHORTEST_MATCH = 4
_LEAST_CHANCE = 0.2  # a draft goes on while all of it survives with that chance, by the library's own count


class Retrieval:
    """Looks for the last eight tokens in the library, then for fewer, down to four, and follows the majority.

    What was chosen by counting was not drawn, so q is one-hot.
    """

    taps, longest_context = (), None

    def __init__(self, store: Datastore, vocab_size: int, device: torch.device) -> None:
        self.store, self.vocab_size, self.device = store, vocab_size, device

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        """Nothing to read: the library knows no prompt."""

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        why: NoDraft = "no_match"
        for n in range(min(LONGEST, len(context)), SHORTEST_MATCH - 1, -1):
            positions = self.store.after(context[-n:])
            if len(positions):
                drafted = self._worth(self.store.likeliest(positions, gamma))
                if drafted:
                    return Proposal.certain(drafted, self.vocab_size, self.device)
                why = "unsure"
        return Proposal.none(self.vocab_size, self.device, why)

    def rollback(self, length: int) -> None:
        """Nothing to forget."""

    def _worth(self, found: list[tuple[int, float]]) -> list[int]:
        """The beginning of a continuation that is likely enough to survive."""
        chance, drafted = 1.0, []
        for token, share in found:
            chance *= share
            if chance < _LEAST_CHANCE:
                break
            drafted.append(token)
        return drafted
