"""Several drafters, asked in turn: the first that has something to propose drafts the round.

A summary quotes its source, code repeats its own names, and answers to like questions begin alike: that is seen for
nothing by looking it up, and a small model misses it. The model drafts what has not been said before.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdemo.drafters.base import Drafter, Proposal, Stop
from specdemo.models.runner import Runner


class FirstOf:
    """Each round's draft comes from one of the drafters alone, so every q is what its token was drawn from."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = drafters
        self.taps = next((drafter.taps for drafter in drafters if drafter.taps), ())  # one of them has a head at most
        self.longest_context = drafters[-1].longest_context

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        for drafter in self.drafters:
            drafter.prefill(prompt, target, stop)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        proposal = None
        for drafter in self.drafters:
            proposal = drafter.propose(context, gamma, stop)
            if len(proposal):
                break
        assert proposal is not None
        return proposal

    def rollback(self, length: int) -> None:
        for drafter in self.drafters:
            drafter.rollback(length)
