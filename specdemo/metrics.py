"""Numbers from events. Each is derived, none is stored twice; definitions follow the names of the field.

Three numbers go by "acceptance rate" and all are here: `alpha` (accepted / tested, the alpha of the formula),
`draft_acceptance` (accepted / drafted, what serving engines report) and `expected_alpha` (mean of 1 - TV(p, q) over
tested positions, which needs no luck and converges fastest).

`relative_speed` is the one definition of a speed-up: page, terminal and benchmarks use it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from decimal import ROUND_HALF_UP, Decimal

from specdemo import theory
from specdemo.events import End, Event, LaneEvent, NoDraft, Prefill, RaceEvent, Round, Start, Trace

_P99_NEEDS = 100  # below this many gaps a 99th percentile is a maximum in disguise, so the maximum is given
COMPARABLE = 12
"""Tokens from which two lanes are compared: over a burst or two a ratio says where the lines were drawn, not who is
faster."""
_STEADY_SHARE = 0.8  # the last rounds before a limit are always shorter


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least that share of them does not exceed."""
    ranked = sorted(values)
    return ranked[math.ceil(share * len(ranked)) - 1]


def fixed(value: float, digits: int) -> str:
    """A finite number with so many decimals, halves rounded up on its exact binary value: what JavaScript's toFixed
    does, where Python's own formatting rounds 3.125 to the even 3.12."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"


def shown(value: float | None, digits: int = 2, unit: float = 1.0) -> str:
    """A number as tables show it; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else fixed(unit * value, digits)


@dataclass
class LaneMetrics:
    """One lane so far. Feed it the lane's events in order; every number may be read at any time.

    Rates are per second of the lane's own clock, None until they are defined.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    draft_steps: int = 0
    tested: int = 0
    accepted: int = 0
    clock: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    bursts: list[tuple[float, int]] = field(default_factory=list)
    """(clock, tokens so far) after each round that emitted something."""
    gammas: Counter[int] = field(default_factory=Counter)
    """How many rounds had a draft of each length."""
    undrafted: Counter[NoDraft] = field(default_factory=Counter)
    """Rounds without a draft that was tested, by the reason."""
    draft_context: int | None = None
    """Tokens that the draft model can read, where that was said to be fewer than the text may have."""
    tree_rounds: int = 0
    tree_nodes: int = 0
    tree_depth: int = 0
    """Rounds whose draft was a tree, and their nodes and depths added up."""
    end: End | None = None
    expected: float = 0.0
    prefill_known: bool = True
    """False where a decoder of others does not tell when it had read the prompt."""

    @classmethod
    def pooled(cls, lanes: Iterable[LaneMetrics]) -> LaneMetrics:
        """Several runs as one: counts and seconds added up. Bursts belong to single runs and are left out."""
        whole = cls()
        for lane in lanes:
            for name in _ADDITIVE:
                setattr(whole, name, getattr(whole, name) + getattr(lane, name))
            whole.gammas.update(lane.gammas)
            whole.undrafted.update(lane.undrafted)
            whole.draft_context = lane.draft_context or whole.draft_context
        return whole

    def add(self, event: Event) -> None:
        if isinstance(event, (Prefill, End, Round)):
            self.clock = event.clock
        if isinstance(event, Start):
            self.draft_context = event.draft_context
        elif isinstance(event, Prefill):
            self.prefill_seconds = event.clock
        elif isinstance(event, End):
            self.end = event
        elif isinstance(event, Round):
            self._add_round(event)

    def _add_round(self, event: Round) -> None:
        emitted = len(event.emitted)
        self.rounds += 1
        self.tokens += emitted
        self.drafted += len(event.drafted)
        self.draft_steps += len(event.drafted) if event.draft_steps is None else event.draft_steps
        self.gammas[len(event.drafted)] += 1
        if event.no_draft:
            self.undrafted[event.no_draft] += 1
        if event.parents is not None:
            self.tree_rounds += 1
            self.tree_nodes += len(event.drafted)
            self.tree_depth += event.depth
        self.tested += event.positions
        self.accepted += event.accepted
        self.expected += event.expected
        self.draft_seconds += event.draft_seconds
        self.verify_seconds += event.verify_seconds
        self.overhead_seconds += event.overhead_seconds
        if emitted:
            self.bursts.append((event.clock, self.tokens))

    @property
    def alpha(self) -> float | None:
        """Per-token acceptance rate: accepted / tested; of trees the share of positions at which a sibling passed."""
        return self.accepted / self.tested if self.tested else None

    @property
    def draft_acceptance(self) -> float | None:
        """Draft acceptance rate: accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def expected_alpha(self) -> float | None:
        """Mean over tested positions of sum_x min(p(x), q(x)) = 1 - TV(p, q); of trees of all siblings' p."""
        return self.expected / self.tested if self.tested else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Mean accepted length: emitted tokens / target passes."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def nodes_per_tree(self) -> float | None:
        """Mean nodes of a tree of drafts."""
        return self.tree_nodes / self.tree_rounds if self.tree_rounds else None

    @property
    def depth_per_tree(self) -> float | None:
        """Mean depth of a tree of drafts."""
        return self.tree_depth / self.tree_rounds if self.tree_rounds else None

    @property
    def ttft(self) -> float | None:
        """Time to first token: submission to first burst on the lane's own clock; waiting in a queue is not in it."""
        return self.bursts[0][0] if self.bursts else None

    @property
    def tpot(self) -> float | None:
        """Time per output token behind the first burst of k: (t_last - t_first) / (n - k)."""
        if len(self.bursts) < 2:
            return None
        (first, k), (last, n) = self.bursts[0], self.bursts[-1]
        return (last - first) / (n - k)

    @property
    def decode_rate(self) -> float | None:
        """Decode tokens/s, the inverse of TPOT: prefill and first burst left out."""
        tpot = self.tpot
        return 1 / tpot if tpot else None

    @property
    def end_to_end_rate(self) -> float | None:
        """Tokens/s of the whole run, prefill included."""
        return self.tokens / self.clock if self.tokens and self.clock else None

    @property
    def undivided(self) -> int:
        """Tokens of a first burst that came with the prefill, and nobody can tell how long each of them took."""
        return 0 if self.prefill_known or not self.bursts else self.bursts[0][1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between bursts. Between tokens the speculative median would be 0."""
        times = [clock for clock, _ in self.bursts]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def worst_gap(self) -> tuple[str, float] | None:
        """('p99', seconds) with enough gaps, else ('max', seconds)."""
        gaps = sorted(self.gaps)
        if not gaps:
            return None
        if len(gaps) < _P99_NEEDS:
            return "max", gaps[-1]
        return "p99", percentile(gaps, 0.99)

    def seconds_to(self, tokens: int) -> float | None:
        """Clock when the lane had at least `tokens` tokens, interpolated inside the burst that crossed the line.

        Interpolating keeps a comparison fair whose line falls into the middle of a burst.
        """
        before_clock, before_tokens = self.prefill_seconds, 0
        for clock, total in self.bursts:
            if total >= tokens:
                share = (tokens - before_tokens) / (total - before_tokens)
                return before_clock + share * (clock - before_clock)
            before_clock, before_tokens = clock, total
        return None


_ADDITIVE = tuple(item.name for item in fields(LaneMetrics) if item.type in ("int", "float"))


def common_tokens(lane: LaneMetrics, other: LaneMetrics) -> int:
    """How many tokens both lanes have: they are compared over these."""
    return min(lane.tokens, other.tokens)


def relative_speed(lane: LaneMetrics, reference: LaneMetrics, end_to_end: bool = False) -> float | None:
    """The speed-up: seconds of the reference / of the lane for the same tokens, as many as both have.

    Decode seconds, from the end of the prefill on, or `end_to_end` all of them. A first burst that came with the
    prefill, undivided, is left out of the decode seconds of both.
    """
    common = common_tokens(lane, reference)
    first = 0 if end_to_end else max(lane.undivided, reference.undivided)
    if common <= first:
        return None
    begun = [0.0, 0.0] if end_to_end else [each.seconds_to(first) for each in (lane, reference)]
    seconds, others = (each.seconds_to(common) - start for each, start in zip((lane, reference), begun, strict=True))
    return others / seconds if min(seconds, others) > 0 else None


@dataclass
class RaceMetrics:
    """The lanes of a race, and what comes of comparing them over the same number of tokens.

    speedup, c, v, o and what follows from them are the speculative lane's against the baseline; `of_rival` has the
    rival's.
    """

    baseline: LaneMetrics = field(default_factory=LaneMetrics)
    speculative: LaneMetrics = field(default_factory=LaneMetrics)
    rival: LaneMetrics = field(default_factory=LaneMetrics)

    @classmethod
    def of(cls, events: Iterable[RaceEvent]) -> RaceMetrics:
        race = cls()
        for event in events:
            race.add(event)
        return race

    @classmethod
    def of_trace(cls, trace: Trace) -> RaceMetrics:
        return cls.of(LaneEvent(lane=lane, event=event) for lane, events in trace.lanes.items() for event in events)

    def add(self, event: RaceEvent) -> None:
        if isinstance(event, LaneEvent):
            getattr(self, event.lane).add(event.event)

    @property
    def of_rival(self) -> RaceMetrics:
        """The same race with the rival in the place of the speculative lane."""
        return RaceMetrics(self.baseline, self.rival)

    @property
    def common_tokens(self) -> int:
        return common_tokens(self.speculative, self.baseline)

    @property
    def speedup(self) -> float | None:
        """Speed of the speculative lane / of the baseline, decoding the same tokens."""
        return relative_speed(self.speculative, self.baseline)

    @property
    def end_to_end_speedup(self) -> float | None:
        """The same with what came before the first token: reading the prompt."""
        return relative_speed(self.speculative, self.baseline, end_to_end=True)

    @property
    def lead(self) -> float | None:
        """Speed of the rival / of the speculative lane; needs no baseline."""
        return relative_speed(self.rival, self.speculative)

    @property
    def target_step(self) -> float | None:
        """Seconds of one plain decoding step of the target, T(1), sampling and bookkeeping included."""
        base = self.baseline
        return (base.verify_seconds + base.overhead_seconds) / base.rounds if base.rounds else None

    @property
    def c(self) -> float | None:
        """Cost ratio: a draft step / a target step. A lookup takes no steps: there it is what a drafted token cost."""
        return self._in_steps(self.speculative.draft_seconds, self._draft_steps)

    @property
    def v(self) -> float | None:
        """Verification ratio: a pass over gamma + 1 tokens / a target step."""
        return self._in_steps(self.speculative.verify_seconds, self.speculative.rounds)

    @property
    def o(self) -> float | None:
        """Overhead ratio: the rest of a round / a target step."""
        return self._in_steps(self.speculative.overhead_seconds, self.speculative.rounds)

    @property
    def round_cost(self) -> float | None:
        """What a round of the speculative lane cost, in target steps: gamma c + v + o."""
        c, v, o = self.c, self.v, self.o
        if c is None or v is None or o is None:
            return None
        return self._draft_steps / self.speculative.rounds * c + v + o

    @property
    def _draft_steps(self) -> int:
        return self.speculative.draft_steps or self.speculative.drafted

    def _in_steps(self, seconds: float, count: int) -> float | None:
        step = self.target_step
        return seconds / count / step if count and step else None

    @property
    def predicted_speedup(self) -> float | None:
        """E / (gamma c + v + o), gamma, c, v and o as measured in this run.

        E comes from alpha by the formula where the rounds share one gamma above 0; where it varies (lookup finds
        nothing, a draft ends early) or drafts are trees, the formula does not hold and the measured tokens per pass
        take its place.
        """
        lane, c, v, o = self.speculative, self.c, self.v, self.o
        if lane.alpha is None or lane.tokens_per_pass is None or c is None or v is None or o is None:
            return None
        gamma, rounds = lane.gammas.most_common(1)[0]
        steady = gamma > 0 and not lane.tree_rounds and rounds >= _STEADY_SHARE * lane.rounds
        expected = theory.expected_tokens(lane.alpha, gamma) if steady else lane.tokens_per_pass
        return theory.speedup(expected, self._draft_steps / lane.rounds, c, v, o)
