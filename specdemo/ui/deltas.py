"""Race events as small JSON deltas, the only thing the browser hears.

A delta holds what is new since the last one (rounds, the ghost of a draft, how far the prompt is) and a fixed set of
numbers, so its size follows the time between two deltas and never the length of the text. No number is rounded: the
page does that once, where it writes it. Deltas of a run are numbered from 0; `assets/js/feed.js` applies them in order
and once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdemo.events import (
    Draft,
    End,
    Event,
    Lane,
    LaneEvent,
    Prefill,
    RaceEnd,
    RaceEvent,
    RaceStart,
    Round,
    Start,
    Token,
)
from specdemo.metrics import COMPARABLE, LaneMetrics, RaceMetrics, common_tokens, relative_speed
from specdemo.ui.verdict import check_note, failure, verdict

LANES: tuple[Lane, ...] = ("baseline", "speculative", "rival")

# One letter an outcome on the wire; assets/js/tokens.js has the same table.
CODES = {
    "accepted": "a",
    "rejected": "x",
    "discarded": "d",
    "resampled": "r",
    "bonus": "b",
    "plain": "p",
    "cut": "c",
}


def pack_token(token: Token) -> list[Any]:
    """[text, outcome letter, position, p, q, accept, u, tv, id, chance, threshold]; the last two if there are any."""
    facts = (token.p, token.q, token.accept, token.u, token.tv)
    more = () if token.chance is token.threshold is None else (token.chance, token.threshold)
    return [token.text, CODES[token.outcome], token.position, *facts, token.id, *more]


def pack_round(event: Round) -> dict[str, Any]:
    """A round without its recorded top lists; those are fetched for the one token a visitor points at."""
    more: dict[str, Any] = {} if event.parents is None else {"parents": event.parents, "depth": event.depth}
    if event.drafted:
        more |= {"positions": event.positions, "expected": event.expected}
    if event.no_draft:
        more["why"] = event.no_draft
    return {
        "n": event.round,
        "drafted": [pack_token(token) for token in event.drafted],
        "final": None if event.final is None else pack_token(event.final),
        "draft": event.draft_seconds,
        "verify": event.verify_seconds,
        "clock": event.clock,
        **more,
    }


def lane_numbers(lane: LaneMetrics) -> dict[str, float | int | None]:
    return {
        "tokens": lane.tokens,
        "rounds": lane.rounds,
        "clock": lane.clock,
        "rate": lane.decode_rate,
        "end_to_end": lane.end_to_end_rate,
        "ttft": lane.ttft,
        "tpot": lane.tpot,
        "alpha": lane.alpha,
        "draft_acceptance": lane.draft_acceptance,
        "expected_alpha": lane.expected_alpha,
        "per_pass": lane.tokens_per_pass,
        "nodes": lane.nodes_per_tree,
        "depth": lane.depth_per_tree,
    }


class _LaneNews:
    """What one lane did since the last delta."""

    def __init__(self) -> None:
        self.news: dict[str, Any] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Start):
            self.news["start"] = {
                "prompt_tokens": event.prompt_tokens,
                "drafter": event.drafter,
                "gamma": event.gamma,
                "draft_context": event.draft_context,
            }
        elif isinstance(event, Prefill):
            self.news["prefill"] = [event.done, event.total]
        elif isinstance(event, Draft):
            self.news["ghost"] = {"n": event.round, "texts": event.texts}
            if event.parents is not None:
                self.news["ghost"]["parents"] = event.parents
        elif isinstance(event, Round):
            self.news.pop("ghost", None)
            self.news.setdefault("rounds", []).append(pack_round(event))
        elif isinstance(event, End):
            self.news.pop("ghost", None)
            self.news["end"] = {"reason": event.reason, "tokens": event.tokens}
            if event.reason == "error":
                self.news["end"]["message"] = failure(event)

    def take(self) -> dict[str, Any]:
        news, self.news = self.news, {}
        return news


class Encoder:
    """Collects a race's events and hands out what is new as one delta at a time.

    labels: what drafters are called, by id; without one the id is its name.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.metrics = RaceMetrics()
        self._labels = labels or {}
        self._names = ("", "")
        self._lanes = {lane: _LaneNews() for lane in LANES}
        self._head: dict[str, Any] = {}
        self._temperature, self._acceptance = 0.0, "exact"
        self._rival = False

    def add(self, event: RaceEvent) -> None:
        self.metrics.add(event)
        if isinstance(event, LaneEvent):
            self._lanes[event.lane].add(event.event)
        elif isinstance(event, RaceStart):
            self._start(event)
        elif isinstance(event, RaceEnd):
            self._end(event)

    def _start(self, event: RaceStart) -> None:
        settings = event.trace.settings
        self._temperature, self._acceptance = settings.temperature, settings.acceptance
        self._rival = bool(settings.rival) and settings.mode != "baseline"
        self._names = tuple(self._labels.get(id, id) for id in (settings.drafter, settings.rival))
        self._head["start"] = {
            "mode": settings.mode,
            "drafter": settings.drafter,
            "rival": settings.rival if self._rival else "",
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "gamma": settings.gamma,
            "target": event.trace.target.name,
            "dtype": event.trace.target.dtype,
            "draft": event.trace.draft.name if event.trace.draft else None,
            "device": event.trace.machine.device,
        }

    def _end(self, event: RaceEnd) -> None:
        self._head["check"] = check_note(event.check, self._temperature, self.metrics, self._names, self._acceptance)
        self._head["verdict"] = verdict(self.metrics, self._names)

    def delta(self) -> dict[str, Any]:
        """Everything since the last call; {} where nothing happened."""
        news = {lane: item for lane, lane_news in self._lanes.items() if (item := lane_news.take())}
        head, self._head = self._head, {}
        if not news and not head:
            return {}
        return {**head, **news, "numbers": self._numbers()}

    def _numbers(self) -> dict[str, Any]:
        race = self.metrics
        return {
            "baseline": lane_numbers(race.baseline),
            "speculative": lane_numbers(race.speculative) | self._versus(race.speculative, race.baseline),
            **(self._rival_numbers() if self._rival else {}),
        }

    def _rival_numbers(self) -> dict[str, Any]:
        race = self.metrics
        return {
            "rival": lane_numbers(race.rival) | self._versus(race.rival, race.baseline),
            "lead": self._versus(race.rival, race.speculative),
        }

    def _versus(self, lane: LaneMetrics, reference: LaneMetrics) -> dict[str, float | int | None]:
        """How fast a lane is against another, and over how many tokens."""
        common = common_tokens(lane, reference)
        told = common >= COMPARABLE
        return {"speedup": relative_speed(lane, reference) if told else None, "common": common}
