"""How fast a text is being written: what a token is worth, where drafts are weighed against their time."""

from __future__ import annotations

_MEMORY = 0.93  # weight of the past with every round
_PRIOR, _PRIOR_TIME = 1.5, 6.0  # tokens per target step before anything is known, and the steps that say so


class Rate:
    """Tokens per target step of the last rounds; never less than the 1 of plain decoding.

    Time spent in one round is missing in the next, so what maximises tokens per time over the whole text is not the
    best ratio of each round: it is to take whatever yields more tokens than its time would yield at the text's rate.
    """

    def __init__(self) -> None:
        self._tokens, self._time = _PRIOR * _PRIOR_TIME, _PRIOR_TIME

    def __call__(self) -> float:
        return max(1.0, self._tokens / self._time)

    def add(self, tokens: float, time: float) -> None:
        """A round gave so many tokens for so many target steps."""
        self._tokens = self._tokens * _MEMORY + tokens
        self._time = self._time * _MEMORY + time
