"""What was measured, and what of it figures are made of: whole turns, undisturbed ones where there are any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from specdemo.bench.steady import Measured, Steadiness
from specdemo.metrics import LaneMetrics

Turn = tuple[LaneMetrics, LaneMetrics]
"""A contender's run, and the baseline's of the same prompt and repeat: neighbours in time."""


class Disturbed(BaseModel):
    """A run that something outside disturbed. prompt: index. outcome: measured `again` at once, and then undisturbed;
    `left out`, since other repeats of the prompt were undisturbed; or `kept`, since there is nothing better."""

    contender: str
    category: str
    prompt: int
    repeat: int
    reason: str
    outcome: Literal["again", "left out", "kept"]


class Runs:
    """All runs of a benchmark. contenders: names, the baseline's first. categories: of every prompt."""

    def __init__(self, contenders: Sequence[str], categories: Sequence[str]) -> None:
        self.contenders, self.categories = list(contenders), list(categories)
        self._tries: dict[tuple[str, int, int], list[Measured]] = defaultdict(list)
        self._steady = Steadiness()
        self._repeats = 0

    def add(self, run: Measured) -> None:
        """Take a run, or a warm-up: that only shows what is usual."""
        self._steady.learn(run)
        if run.prompt >= 0:
            self._tries[run.contender, run.prompt, run.repeat].append(run)
            self._repeats = max(self._repeats, run.repeat + 1)

    def has(self, contender: str, prompt: int, repeat: int) -> bool:
        return (contender, prompt, repeat) in self._tries

    def disturbance(self, run: Measured) -> str:
        """What disturbed it, by all that is known now; empty where nothing did."""
        return self._steady.disturbance(run)

    def chosen(self, contender: str, prompt: int, repeat: int) -> Measured:
        """The first try that nothing disturbed, else the fastest: disturbances only add time."""
        tries = self._tries[contender, prompt, repeat]
        return next((run for run in tries if not self.disturbance(run)), min(tries, key=lambda run: run.pace))

    def whole(self) -> Runs:
        """These without turns in which somebody is missing, or without those who are missing where no turn is whole:
        what an interrupted benchmark can fairly compare."""
        turns = dict.fromkeys((prompt, repeat) for _, prompt, repeat in self._tries)
        full = [turn for turn in turns if all(self.has(name, *turn) for name in self.contenders)]
        kept = full or list(turns)[:1]
        present = [name for name in self.contenders if kept and self.has(name, *kept[0])]
        found = Runs(present, self.categories)
        found._steady, found._repeats = self._steady, self._repeats
        found._tries |= {key: tries for key, tries in self._tries.items() if key[1:] in kept and key[0] in present}
        return found

    def prompts(self, category: str) -> list[int]:
        """Those of a category that were run."""
        known = sorted({prompt for _, prompt, _ in self._tries})
        return [prompt for prompt in known if self.categories[prompt] == category]

    def turns(self, contender: str, prompt: int) -> tuple[list[Turn], int]:
        """The undisturbed turns of a prompt, and 0; where there is none, all of them and how many they are."""
        found = [
            (self.chosen(contender, prompt, repeat), self.chosen(self.contenders[0], prompt, repeat))
            for repeat in range(self._repeats)
            if self.has(contender, prompt, repeat)
        ]
        steady = [turn for turn in found if not any(map(self.disturbance, turn))]
        return [(own.metrics, base.metrics) for own, base in steady or found], 0 if steady else len(found)

    def of(self, contender: str) -> list[Measured]:
        """What stands for each of a contender's runs."""
        return [self.chosen(*key) for key in self._tries if key[0] == contender]

    def disturbed(self) -> list[Disturbed]:
        """Every run of which a try was disturbed."""
        found = []
        for (contender, prompt, repeat), tries in self._tries.items():
            if not (reason := next(filter(None, map(self.disturbance, tries)), "")):
                continue
            again = not self.disturbance(self.chosen(contender, prompt, repeat))
            kept = self.turns(contender, prompt)[1] > 0
            found.append(
                Disturbed(
                    contender=contender,
                    category=self.categories[prompt],
                    prompt=prompt,
                    repeat=repeat,
                    reason=reason,
                    outcome="again" if again else "kept" if kept else "left out",
                )
            )
        return found
