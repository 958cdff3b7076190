"""How many tokens to draft next: always the same, or what pays best here and now.

A round of gamma drafts gives E(alpha, gamma) tokens for gamma c + v + o target steps (theory.py). The costs belong to
the machine and are measured once, at load; alpha belongs to the text and is followed while it is written.
"""

from __future__ import annotations

from typing import Protocol

from specdemo import theory
from specdemo.models.costs import Costs
from specdemo.settings import MAX_GAMMA

_MEMORY = 0.95  # weight of the past against each newly tested draft
_PRIOR_ALPHA, _PRIOR_WEIGHT = 0.5, 1.0  # what is believed of a text before anything is seen: one test outvotes it
_UNSURE = 0.6  # how much of a refused draft it counts that a drafter was too unsure to draft at all
_PROBING = 0.03  # share of the time that may be lost to looking whether drafting pays again


class Policy(Protocol):
    """Decides before every round, and hears what came of it. A fresh one is made for every run."""

    gamma: int
    """The gamma of every round, 0 where it changes."""

    def choose(self) -> int:
        """Drafts to ask for now; 0 decodes plainly."""
        ...

    def learn(self, steps: int, drafted: int, accepted: int) -> None:
        """`steps` steps of the drafter gave `drafted` tokens, of which the target kept the first `accepted`."""
        ...


class Fixed:
    """The textbook's gamma. live: the drafter makes of it what pays, as trees do, and it is the largest there is."""

    def __init__(self, gamma: int, live: bool = False) -> None:
        self.most, self.gamma = gamma, 0 if live else gamma

    def choose(self) -> int:
        return self.most

    def learn(self, steps: int, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


class Auto:
    """The gamma that maximises E / (gamma c + v + o) at the text's running alpha; plain decoding is among them.

    While plain decoding is best, single drafts are tried again, as long as what drafting has lost so far, the next
    draft with all that it has to read first included, stays within 3 % of the time: a hopeless text is hardly slower
    than the baseline, and a better one is noticed. Until a draft was right nothing else is done: an answer may be over
    before a belief has changed. Times are the costs measured at load and not the clock's, so that the same seed gives
    the same text.
    """

    gamma = 0

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._accepted, self._tested = _PRIOR_ALPHA * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._time = self._lost = 0.0  # in target steps
        self._behind = 0  # tokens that the drafter has not read, since it was not asked while they were written
        self._proven = False  # a draft was right

    @property
    def alpha(self) -> float:
        """Running per-token acceptance rate."""
        return self._accepted / self._tested

    def choose(self) -> int:
        risk = self.costs.round(1, 1, self._behind) - 1
        fits = self._lost + risk <= _PROBING * self._time
        if not self._proven:
            return 1 if fits or self._lost == 0 else 0
        best = max(range(MAX_GAMMA + 1), key=self._gain)
        return 1 if best == 0 and fits else best

    def learn(self, steps: int, drafted: int, accepted: int) -> None:
        time = self.costs.round(steps, drafted, self._behind if steps else 0)
        self._behind = 0 if steps else self._behind + accepted + 1
        self._proven |= accepted > 0
        self._time += time
        self._lost = max(0.0, self._lost + time - (accepted + 1))  # what was gained earlier pays for nothing later
        refused = 1.0 if accepted < drafted else _UNSURE if steps and not drafted else 0.0
        forget = _MEMORY ** (accepted + refused)
        self._accepted = self._accepted * forget + accepted
        self._tested = self._tested * forget + accepted + refused

    def _gain(self, gamma: int) -> float:
        return theory.expected_tokens(self.alpha, gamma) / self.costs.round(gamma, gamma)
