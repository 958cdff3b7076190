"""The numbers of a benchmark, from runs to a file.

A speed-up is that of `metrics.relative_speed`: the same tokens, decoding, against the baseline's run of the same prompt
and repeat. A prompt has the median over its repeats, a category the geometric mean over its prompts (ratios: half as
fast and twice as fast make 1), and the last row the mean over categories. So one repeat that something disturbed moves
nothing, and one prompt moves its category by its own share.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import BaseModel

from specdemo.bench.roofline import Roofline
from specdemo.bench.runs import Disturbed, Turn
from specdemo.events import GreedyVerdict, Machine, ModelInfo, NoDraft
from specdemo.metrics import LaneMetrics, RaceMetrics, percentile, relative_speed, shown
from specdemo.models.costs import Costs

ALL = "all"
"""The row over every category: means of the categories' figures, each counting the same."""
MARK = "!"
"""On figures that disturbed runs went into."""


class Figures(BaseModel):
    """One contender on one category. Times in seconds, rates in tokens a second; None where something has no meaning.

    decode_rate is that of all prompts together, (n - k) / (t_last - t_first) with n tokens and k in the first burst.
    speedup: see above; end_to_end_speedup is the same with the time before the first token. Of each prompt's repeats
    decode_rate and speed-ups take the median, *_low and *_high the least and largest. c, v, o are in baseline steps.
    """

    decode_rate: float | None = None
    decode_rate_low: float | None = None
    decode_rate_high: float | None = None
    end_to_end_rate: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    gap_p50: float | None = None
    gap_p99: float | None = None
    gap_max: float | None = None
    tokens_per_pass: float | None = None
    alpha: float | None = None
    draft_acceptance: float | None = None
    expected_alpha: float | None = None
    c: float | None = None
    v: float | None = None
    o: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    end_to_end_speedup: float | None = None
    predicted: float | None = None


class Row(BaseModel):
    """Figures of a contender on a category, and how its greedy texts compare with the baseline's. drafter: its name
    where it is one of this project's, running alone. undrafted: its rounds without a draft, by the reason. disturbed:
    turns that something outside disturbed and that the figures are made of nevertheless, because nothing better was to
    be had."""

    contender: str
    category: str
    figures: Figures
    drafter: str = ""
    texts: dict[GreedyVerdict, int] = {}
    undrafted: dict[NoDraft, int] = {}
    disturbed: int = 0


class BatchRow(BaseModel):
    """Several texts at once: tokens a second of the whole batch, plain and with drafts, their ratio, and the least and
    largest ratio of all repeats."""

    category: str
    batch: int
    gamma: int
    plain_rate: float
    speculative_rate: float
    speedup: float
    speedup_low: float | None = None
    speedup_high: float | None = None
    tokens_per_pass: float
    alpha: float


class Report(BaseModel):
    """A benchmark: where, with what, and what came of it. complete: whether it ran to its end.

    Schema 1 had the ratio of both decode rates as its speedup, over texts of any length.
    """

    schema_version: Literal[1, 2] = 2
    created: str
    machine: Machine
    commit: str
    complete: bool = True
    target: ModelInfo
    draft: ModelInfo | None
    settings: dict
    prompts: dict[str, int]
    prompts_sha256: str = ""
    repeats: int
    costs: Costs
    steps: dict[str, float] = {}
    """Draft steps in target steps, by what computes them, as measured at load."""
    rows: list[Row]
    batches: list[BatchRow] = []
    disturbed: list[Disturbed] = []
    roofline: Roofline | None = None
    peak_memory: int = 0
    processor_share: float | None = None
    """Processor seconds that this process got a second while the baseline ran, a median: a program that takes its share
    of the machine all the time disturbs every run alike, and shows nowhere else. None on a GPU."""

    def row(self, contender: str, category: str = ALL) -> Row:
        return next(row for row in self.rows if row.contender == contender and row.category == category)

    @property
    def drafters(self) -> list[str]:
        """This project's own speculative contenders, each running alone."""
        return [row.contender for row in self.rows if row.category == ALL and row.drafter]

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def categories(self) -> list[str]:
        return [category for category in dict.fromkeys(row.category for row in self.rows) if category != ALL]

    def best(self, category: str) -> str | None:
        """The fastest of this project's drafters in a category; None where nobody's speed is known."""
        known = {name: self.row(name, category).figures.speedup for name in self.drafters}
        known = {name: speedup for name, speedup in known.items() if speedup is not None}
        return max(known, key=known.__getitem__) if known else None

    def facts(self) -> list[str]:
        """What stands below the tables, in sentences."""
        lines = self.cautions()
        if self.roofline:
            lines.append(self.roofline.sentence())
        for row in self.batches:
            lines.append(
                f"Batch of {row.batch}, {row.category}, gamma {row.gamma}: {row.plain_rate:.0f} -> "
                f"{row.speculative_rate:.0f} tokens/s ({row.speedup:.2f} x, in repeats {shown(row.speedup_low)}-"
                f"{shown(row.speedup_high)}; {row.tokens_per_pass:.2f} tokens a pass and row, alpha {row.alpha:.2f})"
            )
        best = {category: name for category in self.categories if (name := self.best(category))}
        gains = [self.row(name, category).figures.speedup for category, name in best.items()]
        for (category, name), gain in zip(best.items(), gains, strict=True):
            lines.append(f"Best in {category}: {name} ({gain:.2f} x)")
        if gains:
            lines.append(f"Best drafter of each category, mean: {statistics.mean(gains):.2f} x")
        packages = ", ".join(f"{name} {version}" for name, version in self.machine.packages.items())
        lines.append(f"{self.machine.processor}, {self.machine.threads} threads, {self.target.dtype}, {packages}")
        if self.processor_share is not None:
            threads = self.machine.threads
            lines.append(
                f"The baseline had {self.processor_share:.1f} s of processor time a second, of {threads} threads"
            )
        lines.append(f"Peak memory {self.peak_memory / 1e9:.2f} GB, everything that ran included")
        return lines

    def cautions(self) -> list[str]:
        """What a reader should know before believing the figures."""
        lines = [] if self.complete else ["INCOMPLETE: it was stopped; these are the figures of what it finished."]
        if not self.disturbed:
            return lines
        counts = Counter(run.outcome for run in self.disturbed)
        lines.append(
            f"Disturbed from outside: {len(self.disturbed)} runs. {counts['again']} were run again at once and are "
            f"replaced, {counts['left out']} are left out, {counts['kept']} could not be had undisturbed: their "
            f"figures are marked with {MARK}."
        )
        for run in self.disturbed:
            if run.outcome == "kept":
                lines.append(
                    f"{MARK} {run.contender}, {run.category}, prompt {run.prompt + 1}, repeat {run.repeat + 1}: "
                    f"{run.reason}."
                )
        return lines


def figures(prompts: Sequence[Sequence[Turn]]) -> Figures:
    """Figures of the turns of each prompt, prompts[prompt][repeat]."""
    runs = [[own for own, _ in turns] for turns in prompts]
    everything = [own for own, _ in itertools.chain(*prompts)]
    gaps = sorted(gap for m in everything for gap in m.gaps)
    plain = LaneMetrics.pooled(base for _, base in itertools.chain(*prompts))
    whole = RaceMetrics(plain, LaneMetrics.pooled(everything))
    lane = whole.speculative
    rate = decode_rate(runs)
    speedups = [_known(relative_speed(*turn) for turn in turns) for turns in prompts]
    return Figures(
        decode_rate=rate,
        decode_rate_low=decode_rate(runs, max),
        decode_rate_high=decode_rate(runs, min),
        end_to_end_rate=lane.end_to_end_rate,
        ttft=_median(_known(m.ttft for m in everything)),
        tpot=1 / rate if rate else None,
        gap_p50=_median(gaps),
        gap_p99=percentile(gaps, 0.99) if gaps else None,
        gap_max=max(gaps, default=None),
        tokens_per_pass=lane.tokens_per_pass,
        alpha=lane.alpha,
        draft_acceptance=lane.draft_acceptance,
        expected_alpha=lane.expected_alpha,
        c=whole.c if lane.drafted else None,
        v=whole.v if lane.drafted else None,
        o=whole.o if lane.drafted else None,
        speedup=_together(speedups),
        speedup_low=_together(speedups, min),
        speedup_high=_together(speedups, max),
        end_to_end_speedup=_together([_known(relative_speed(*turn, True) for turn in turns) for turns in prompts]),
        predicted=whole.predicted_speedup,
    )


def decode_rate(
    prompts: Iterable[Sequence[LaneMetrics]], of: Callable[[list[float]], float] = statistics.median
) -> float | None:
    """Tokens a second of several prompts together, first bursts left out, each taking `of` the seconds of its repeats;
    None where no text has a second burst."""
    tokens = seconds = 0.0
    for runs in prompts:
        timed = [m for m in runs if m.tpot]
        if timed:
            behind = timed[0].tokens - timed[0].bursts[0][1]
            tokens, seconds = tokens + behind, seconds + behind * of([m.tpot for m in timed])
    return tokens / seconds if seconds else None


def _together(prompts: Iterable[list[float]], of: Callable[[list[float]], float] = statistics.median) -> float | None:
    """Ratios of several prompts' repeats as one: `of` each prompt's, and their geometric mean."""
    known = [of(ratios) for ratios in prompts if ratios]
    return statistics.geometric_mean(known) if known else None


def overall(rows: Sequence[Row]) -> Row:
    """The mean of a contender's categories; of the largest gaps the largest."""
    means = {name: _mean(getattr(row.figures, name) for row in rows) for name in Figures.model_fields}
    means["gap_max"] = max(_known(row.figures.gap_max for row in rows), default=None)
    texts: Counter[GreedyVerdict] = Counter()
    undrafted: Counter[NoDraft] = Counter()
    for row in rows:
        texts.update(row.texts)
        undrafted.update(row.undrafted)
    first = rows[0]
    return Row(
        contender=first.contender,
        category=ALL,
        figures=Figures(**means),
        drafter=first.drafter,
        texts=dict(texts),
        undrafted=dict(undrafted),
        disturbed=sum(row.disturbed for row in rows),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.mean(known) if known else None
