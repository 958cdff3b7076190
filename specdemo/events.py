"""What decoders say and everybody else hears: typed events, and the trace that keeps them.

A decoder is a generator of events. The race, the metrics, the page and the exports see nothing else of it, so a
recorded trace can stand in for a live run anywhere. All times are seconds on the lane's own clock (the compute
time it has used, prefill included), all positions count generated tokens from 0.

Schema changes: adding an optional field is free; renaming, removing or changing a meaning raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from specdemo.models.costs import Costs
from specdemo.settings import Settings

SCHEMA_VERSION = 1

Outcome = Literal["accepted", "rejected", "discarded", "resampled", "bonus", "plain", "cut"]
"""What became of a token.

accepted: drafted, tested, kept. rejected: drafted, tested, refused. discarded: never tested, since a rejection before
it or, in a tree, another branch had decided. resampled: drawn from the residual at a rejection. bonus: the extra token
behind a fully accepted draft or path.
plain: drawn from the target in a pass without a draft. cut: accepted, but behind the end of the text.
"""

Lane = Literal["baseline", "speculative", "rival"]
"""baseline: no drafts. speculative: drafts by the chosen drafter. rival: by another one, to race it."""

EndReason = Literal["eos", "max_tokens", "context", "stopped", "error"]

NoDraft = Literal[
    "draft_full", "draft_broken", "plain_faster", "no_match", "unsure", "no_node_pays", "no_room", "too_early"
]
"""Why a round of a lane that drafts had no draft.

draft_full: the text is as long as the draft model can read. draft_broken: the drafter computed something that is no
distribution (NaN, infinite logits) and is off for the rest of the run. plain_faster: gamma is chosen live, and plain
decoding was expected to be faster. no_match: a lookup found nothing. unsure: the first token seemed too unlikely to
survive. no_node_pays: no node of a tree was worth its time. no_room: one token was left to write, which is the
target's own. too_early: there is no state of the target to draft from yet (a prompt of one token).
"""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Candidate(_Event):
    """One entry of a recorded top list."""

    id: int
    text: str
    prob: float


class TopLists(_Event):
    """The most probable tokens at one position, most probable first (recorded only when asked for).

    p and q are what the decision used; residual is norm(max(0, p - q)) where a rejection drew from it; plain is the
    target at temperature 1 without truncation, since a greedy p is always 0 or 1.
    """

    p: list[Candidate] = []
    q: list[Candidate] = []
    residual: list[Candidate] = []
    plain: list[Candidate] = []


class Token(_Event):
    """One token of a round. For rejected and discarded drafts `position` is where they would have stood.

    Where the token was tested: p and q are its probabilities under target and drafter, accept the acceptance
    probability, min(1, p/q) (in a tree min(1, r/q), r being what elder siblings left of p; 1 or 0 by typical
    acceptance, which needs no u), u the uniform it was compared with, tv the total variation distance between p and q
    at this position (1 - tv is the expected acceptance rate). chance: where a drafter chose the token instead of
    drawing it (q is 1 then), how likely it thought the whole path up to it to be accepted. threshold: by typical
    acceptance, what p had to exceed. Tokens that were not drafted carry p alone.
    """

    id: int
    text: str
    outcome: Outcome
    position: int
    p: float | None = None
    q: float | None = None
    accept: float | None = None
    u: float | None = None
    tv: float | None = None
    chance: float | None = None
    threshold: float | None = None
    top: TopLists | None = None


class Start(_Event):
    """The decoder is about to read the prompt. `drafter` is None in the baseline; gamma 0 means chosen every round.
    draft_context: tokens that the draft model can read, where the text may become longer.
    """

    type: Literal["start"] = "start"
    prompt_tokens: int
    drafter: str | None = None
    gamma: int = 0
    draft_context: int | None = None


class Prefill(_Event):
    """A chunk of the prompt has been read: `done` of `total` tokens."""

    type: Literal["prefill"] = "prefill"
    done: int
    total: int
    clock: float


class Draft(_Event):
    """A round's draft, before the target has seen it (the page shows it as a ghost). Only while recording.

    texts: of a tree, each node's text behind its own ancestors. parents: as in a Round.
    """

    type: Literal["draft"] = "draft"
    round: int
    start: int
    texts: list[str]
    parents: list[int] | None = None
    clock: float


class Round(_Event):
    """One pass of the target: the drafts with their verdicts, then the token that the target itself added.

    `final` is None only where an end-of-text among the accepted drafts ended the round, or the lane ended in an error
    behind them. draft_steps: model calls of the drafter, which may be one more than the drafts (None in traces that do
    not know). parents: of a tree, the index of the draft behind which each stands, -1 for those directly behind the
    text; None for a chain. no_draft: why nothing was drafted, or nothing that could be tested (None in the baseline).
    """

    type: Literal["round"] = "round"
    round: int
    start: int
    drafted: list[Token]
    final: Token | None = None
    draft_steps: int | None = None
    parents: list[int] | None = None
    no_draft: NoDraft | None = None
    draft_seconds: float
    verify_seconds: float
    overhead_seconds: float
    clock: float

    @property
    def emitted(self) -> list[Token]:
        """The tokens that the text gained, in order."""
        kept = [token for token in self.drafted if token.outcome == "accepted"]
        return kept if self.final is None else [*kept, self.final]

    @property
    def accepted(self) -> int:
        """Drafts that passed the test (those cut off behind the end of the text included)."""
        return sum(token.outcome in ("accepted", "cut") for token in self.drafted)

    @property
    def tested(self) -> int:
        """Drafts that were tested at all: a rejected one counts, those behind it do not."""
        return sum(token.outcome != "discarded" for token in self.drafted)

    @property
    def positions(self) -> int:
        """Positions of the text at which drafts were tested: siblings of a tree share one."""
        if self.parents is None:
            return self.tested
        pairs = zip(self.drafted, self.parents, strict=True)
        return len({parent for token, parent in pairs if token.outcome != "discarded"})

    @property
    def expected(self) -> float:
        """Sum over those positions of the chance that a draft is accepted there: sum_x min(p(x), q(x)), and in a tree
        the p of all siblings together."""
        if self.parents is None:
            return sum(1 - (token.tv or 0.0) for token in self.drafted if token.outcome != "discarded")
        return min(float(self.positions), sum(token.p or 0.0 for token in self.drafted))

    @property
    def depth(self) -> int:
        """Drafts on the longest way from the text outwards; all of them where they are a chain."""
        return max((token.position - self.start + 1 for token in self.drafted), default=0)

    @property
    def in_line(self) -> list[Token]:
        """The tokens that a line of text can show. Of a tree: what was accepted, the first draft that was refused where
        the target's own token stands, and that token; the others stood beside the text, not in it."""
        final = [] if self.final is None else [self.final]
        if self.parents is None:
            return [*self.drafted, *final]
        kept = [token for token in self.drafted if token.outcome in ("accepted", "cut")]
        there = [t for t in self.drafted if t.outcome == "rejected" and final and t.position == final[0].position]
        return [*kept, *there[:1], *final]


class End(_Event):
    """The decoder has ended; after this nothing follows. `message` explains an error in a sentence, `model` names the
    model whose logits for token number `tokens` were no distribution."""

    type: Literal["end"] = "end"
    reason: EndReason
    tokens: int
    clock: float
    message: str = ""
    model: str = ""


Event = Annotated[Start | Prefill | Draft | Round | End, Field(discriminator="type")]


class ModelInfo(_Event):
    """What a lane ran on; `sha256` identifies the weights (empty where they come from a hub by revision)."""

    name: str
    parameters: int
    dtype: str
    sha256: str = ""
    revision: str = ""


class Machine(_Event):
    """Where a trace was made."""

    device: str
    processor: str
    threads: int
    python: str
    packages: dict[str, str]


GreedyVerdict = Literal["identical", "near_tie", "different", "unchecked"]


class GreedyCheck(_Event):
    """Greedy texts of the lanes compared over their common length.

    identical; near_tie: they part at `position`, where the baseline's two best logits lie `gap` apart, within the
    floating-point noise between batch shapes; different: they part with no tie to excuse it, which is a bug;
    unchecked: temperature above 0, a lane missing or stopped, no token to compare, or no logits to judge by. Lanes that
    ended in an error are compared as far as they came. Every lane is compared with the first one, the baseline where it
    runs; what is told is the worst that was found, and `lane` is the one in which (None in traces of two lanes).
    """

    verdict: GreedyVerdict
    lane: Lane | None = None
    compared: int = 0
    position: int | None = None
    gap: float | None = None


class Trace(BaseModel):
    """Everything needed to show, check or compare a run again. `lanes` holds each lane's events in order; `heads` those
    that drafted, by kind; `costs` what sizes were chosen by where they were chosen live."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str
    settings: Settings
    target: ModelInfo
    draft: ModelInfo | None = None
    heads: dict[str, ModelInfo] = {}
    machine: Machine
    costs: dict[Lane, Costs] = {}
    lanes: dict[Lane, list[Event]] = {}
    check: GreedyCheck = GreedyCheck(verdict="unchecked")

    @classmethod
    def of(cls, events: Iterable[RaceEvent]) -> Trace:
        """The trace of a race, or of as much of it as there is; the first event must be its RaceStart."""
        first, *rest = events
        assert isinstance(first, RaceStart)
        trace = first.trace.model_copy(deep=True)
        for event in rest:
            if isinstance(event, LaneEvent):
                trace.lanes.setdefault(event.lane, []).append(event.event)
            elif isinstance(event, RaceEnd):
                trace.check = event.check
        return trace

    def rounds(self, lane: Lane) -> list[Round]:
        return [event for event in self.lanes.get(lane, []) if isinstance(event, Round)]

    def text(self, lane: Lane) -> str:
        """The generated text of one lane."""
        return "".join(token.text for round_ in self.rounds(lane) for token in round_.emitted)

    def to_json(self) -> str:
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """Raises pydantic.ValidationError (a ValueError) for text that is no trace of this schema."""
        return cls.model_validate_json(text)


class RaceStart(_Event):
    """First message of a race: the trace's head, with no lane in it yet."""

    type: Literal["race_start"] = "race_start"
    trace: Trace


class LaneEvent(_Event):
    """An event of one lane."""

    type: Literal["lane"] = "lane"
    lane: Lane
    event: Event


class RaceEnd(_Event):
    """Last message of a race."""

    type: Literal["race_end"] = "race_end"
    check: GreedyCheck


RaceEvent = Annotated[RaceStart | LaneEvent | RaceEnd, Field(discriminator="type")]
