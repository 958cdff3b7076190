"""What is benchmarked: anything that continues a prompt and says when its tokens came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from specdemo.drafters import find_drafter
from specdemo.errors import UserError
from specdemo.events import Lane, RaceEvent, Trace
from specdemo.metrics import LaneMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import race
from specdemo.settings import Settings
from specdemo.ui.host import DrafterInfo, Status
from specdemo.ui.stream import Run, Streamer


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
    """Drafts a round: nodes, where they are a tree's. None is auto."""
    confidence: float = 0.0

    @property
    def lane(self) -> Lane:
        return "speculative" if self.drafter else "baseline"

    def settings(self, settings: Settings) -> Settings:
        """The settings with this contender's own in them."""
        change: dict = {"mode": self.lane, "record": False}
        if self.drafter:
            change |= {"drafter": self.drafter, "confidence": self.confidence, "auto_gamma": self.gamma is None}
            drafts = "nodes" if find_drafter(self.drafter).is_tree else "gamma"
            change |= {} if self.gamma is None else {drafts: self.gamma}
        return Settings.checked(**settings.model_dump() | change)

    def write(self, settings: Settings) -> Written:
        return _written(Trace.of(race(self.loaded, self.settings(settings), threading.Event())), self.lane)


@dataclass(frozen=True)
class OnThePage:
    """One lane of a race as a visitor runs it: beside the other lane, everything recorded, streamed to a page that
    nobody looks at. What it loses against the same lane alone is what showing it costs."""

    name: str
    lane: Lane
    alone: Ours
    """The speculative lane of the race."""

    def write(self, settings: Settings) -> Written:
        shown = self.alone.settings(settings).model_copy(update={"mode": "race", "record": True})
        run = Run(shown)
        for _ in Streamer(_Ready(self.alone.loaded)).updates(run):
            pass
        trace = run.trace()
        assert trace is not None
        return _written(trace, self.lane)


@dataclass(frozen=True)
class _Ready:
    """As much of a page's host as a race needs: models that are loaded."""

    loaded: LoadedPair

    def prepare(self, pair: str) -> None:
        """Loaded already."""

    def status(self) -> Status:
        return Status(message="", fraction=None, ready=True)

    def drafters(self) -> list[DrafterInfo]:
        return []  # nobody reads what they are called

    def race(self, settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        return race(self.loaded, settings, stop)


def _written(trace: Trace, lane: Lane) -> Written:
    """What one lane of a race wrote. Raises UserError where it ended in an error: half a text has no figures."""
    metrics = LaneMetrics()
    for event in trace.lanes[lane]:
        metrics.add(event)
    if metrics.end and metrics.end.reason == "error":
        raise UserError(metrics.end.message)
    return Written([token.id for round_ in trace.rounds(lane) for token in round_.emitted], metrics)


def speculative(loaded: LoadedPair, drafter: str, gamma: int | None, confidence: float = 0.0) -> Ours:
    """A speculative contender under the name that tables use. Raises UserError for a drafter that does not exist."""
    kind = find_drafter(drafter)
    doubt = f", stop {confidence:g}" if "draft" in kind.needs and confidence else ""
    drafts = f"{gamma or 'auto'} nodes" if kind.is_tree else f"gamma {gamma or 'auto'}"
    return Ours(f"{drafter}, {drafts}{doubt}", loaded, drafter, gamma, confidence)
