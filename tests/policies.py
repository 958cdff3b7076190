"""A policy for tests: gammas in turn."""

from __future__ import annotations

import itertools


class Cycle:
    """Asks for each of the given gammas in turn, again and again."""

    gamma = 0

    def __init__(self, *gammas: int) -> None:
        self._gammas = itertools.cycle(gammas)

    def choose(self) -> int:
        return next(self._gammas)

    def learn(self, steps: int, drafted: int, accepted: int) -> None:
        """Nothing to learn."""
