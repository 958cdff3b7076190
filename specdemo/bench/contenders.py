"""What is benchmarked: anything that continues a prompt and says when its tokens came."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from specdemo.drafters import DRAFTERS
from specdemo.errors import UserError
from specdemo.events import Lane, LaneEvent, RaceEvent, Round
from specdemo.metrics import LaneMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import race
from specdemo.settings import Settings


@dataclass(frozen=True)
class Written:
    """One text: its token ids and the numbers of the run that wrote it."""

    ids: list[int]
    metrics: LaneMetrics


class Contender(Protocol):
    """Has a name and continues prompts. Text and times of a run depend on nothing that was run before."""

    name: str

    def write(self, settings: Settings) -> Written:
        """Continue `settings.prompt` as the settings say (sampler, length, seed, chat template)."""
        ...


@dataclass(frozen=True)
class Ours:
    """One of this project's lanes, alone: the baseline where there is no drafter."""

    name: str
    loaded: LoadedPair
    drafter: str | None = None
    gamma: int | None = None
    """None is auto."""
    confidence: float = 0.0

    def write(self, settings: Settings) -> Written:
        lane: Lane = "speculative" if self.drafter else "baseline"
        change: dict = {"mode": lane, "record": False}
        if self.drafter:
            change |= {"drafter": self.drafter, "confidence": self.confidence, "auto_gamma": self.gamma is None}
            change |= {"gamma": self.gamma} if self.gamma else {}
        events = race(self.loaded, settings.model_copy(update=change), threading.Event())
        return collect(list(events), lane)


def collect(events: list[RaceEvent], lane: Lane) -> Written:
    """What one lane of a race wrote."""
    own = [event.event for event in events if isinstance(event, LaneEvent) and event.lane == lane]
    metrics = LaneMetrics()
    for event in own:
        metrics.add(event)
    return Written([token.id for event in own if isinstance(event, Round) for token in event.emitted], metrics)


def speculative(loaded: LoadedPair, drafter: str, gamma: int | None, confidence: float = 0.0) -> Ours:
    """A speculative contender under the name that tables use. Raises UserError for a drafter that does not exist."""
    if drafter not in DRAFTERS:
        raise UserError(f"There is no drafter {drafter!r}; choose one of: {', '.join(DRAFTERS)}.")
    doubt = f", stop {confidence:g}" if confidence and DRAFTERS[drafter].needs_draft else ""
    return Ours(f"{drafter}, gamma {'auto' if gamma is None else gamma}{doubt}", loaded, drafter, gamma, confidence)
