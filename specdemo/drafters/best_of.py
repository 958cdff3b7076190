"""Several drafters, each trusted as far as it has been right in this text.

A summary quotes its source, code repeats its own names, and answers to like questions begin alike: that is seen for
nothing by looking it up, and a head or a small model misses it. But a chance match drafts worse than either. So the
lookups are asked first, which costs nothing, and the first one whose draft is expected to give more tokens for its
verification than the last drafter gives for all that it costs has the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdemo import theory
from specdemo.drafters.base import Drafter, Proposal, Stop
from specdemo.drafters.rate import Rate
from specdemo.models.costs import Costs
from specdemo.models.runner import Runner

_MEMORY = 0.93  # weight of the past with every round, also of those that others drafted: who was wrong is tried again
_PRIOR_ALPHA, _PRIOR_WEIGHT = 0.5, 2.0  # what is believed of a lookup before it has drafted: a few tests outvote it


@dataclass
class _Record:
    """What a lookup's drafts came to in this text."""

    accepted: float = 0.0
    tested: float = 0.0

    @property
    def alpha(self) -> float:
        return (self.accepted + _PRIOR_ALPHA * _PRIOR_WEIGHT) / (self.tested + _PRIOR_WEIGHT)

    def forget(self) -> None:
        self.accepted, self.tested = self.accepted * _MEMORY, self.tested * _MEMORY


class BestOf:
    """Each round's draft comes from one of the drafters alone, so every q is what its token was drawn from.

    costs: what a round costs on this machine, with the last drafter's step in it; the lookups' steps cost nothing.
    """

    def __init__(self, lookups: Sequence[Drafter], last: Drafter, costs: Costs) -> None:
        self.lookups, self.last, self.costs = lookups, last, costs
        self.taps, self.longest_context = last.taps, last.longest_context
        self.records = [_Record() for _ in lookups]
        self.rate = Rate()  # of the last drafter's rounds
        self._asked: tuple[_Record | None, int, Proposal] | None = None  # whose draft, behind how many tokens, and what

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        for drafter in (*self.lookups, self.last):
            drafter.prefill(prompt, target, stop)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        proposal, record = None, None
        for drafter, record in zip(self.lookups, self.records, strict=True):
            found = drafter.propose(context, gamma, stop)
            n = max(range(len(found) + 1), key=lambda n, record=record: self._gain(record, n))
            if n and self._gain(record, n) > 0:
                proposal = found.first(n)
                break
        else:
            proposal, record = self.last.propose(context, gamma, stop), None
        self._asked = record, len(context), proposal
        return proposal

    def rollback(self, length: int) -> None:
        self._learn(length)
        for drafter in (*self.lookups, self.last):
            drafter.rollback(length)

    def _gain(self, record: _Record, n: int) -> float:
        """Tokens of a looked-up draft of n, less what the last drafter would write in its time."""
        return theory.expected_tokens(record.alpha, n) - self.rate() * self.costs.round(0, n)

    def _learn(self, length: int) -> None:
        """The first `length` tokens were kept: what that says of whoever drafted."""
        if self._asked is None:
            return
        record, before, proposal = self._asked
        accepted = length - before
        for known in self.records:
            known.forget()
        if record is not None:
            record.accepted += accepted
            record.tested += min(accepted + 1, len(proposal))
        else:
            self.rate.add(accepted + 1, self.costs.round(proposal.steps, len(proposal)))
        self._asked = None
