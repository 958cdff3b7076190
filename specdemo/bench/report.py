"""The numbers of a benchmark, from runs to a table and a file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import BaseModel
from rich.table import Table

from specdemo.bench.roofline import Roofline
from specdemo.events import GreedyVerdict, Machine, ModelInfo
from specdemo.metrics import LaneMetrics, RaceMetrics

ALL = "all"
"""The row over every category: means of the categories' figures, each counting the same."""


class Figures(BaseModel):
    """One contender on one category. Times in seconds, rates in tokens a second; None where something has no meaning.

    decode_rate is that of all prompts together, (n - k) / (t_last - t_first) with n tokens and k in the first burst. Of
    repeats: decode_rate and speedup are medians, *_low and *_high the least and largest. speedup is against the
    baseline in the same repeat. c, v, o are in baseline steps.
    """

    decode_rate: float
    decode_rate_low: float
    decode_rate_high: float
    end_to_end_rate: float
    ttft: float
    tpot: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    tokens_per_pass: float
    alpha: float | None = None
    draft_acceptance: float | None = None
    expected_alpha: float | None = None
    c: float | None = None
    v: float | None = None
    o: float | None = None
    speedup: float
    speedup_low: float
    speedup_high: float
    predicted: float | None = None


class Row(BaseModel):
    """Figures of a contender on a category, and how its greedy texts compare with the baseline's."""

    contender: str
    category: str
    figures: Figures
    texts: dict[GreedyVerdict, int] = {}


class BatchRow(BaseModel):
    """Several texts at once: tokens a second of the whole batch, plain and with drafts."""

    category: str
    batch: int
    gamma: int
    plain_rate: float
    speculative_rate: float
    speedup: float
    tokens_per_pass: float
    alpha: float


class Report(BaseModel):
    """A whole benchmark: where, with what, and what came of it."""

    schema_version: Literal[1] = 1
    created: str
    machine: Machine
    commit: str
    target: ModelInfo
    draft: ModelInfo | None
    settings: dict
    prompts: dict[str, int]
    repeats: int
    rows: list[Row]
    batches: list[BatchRow] = []
    roofline: Roofline | None = None
    peak_memory: int = 0

    def row(self, contender: str, category: str = ALL) -> Row:
        return next(row for row in self.rows if row.contender == contender and row.category == category)

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def categories(self) -> list[str]:
        return [category for category in dict.fromkeys(row.category for row in self.rows) if category != ALL]

    def best(self, category: str, drafters: Iterable[str]) -> str:
        """The fastest of some contenders in a category."""
        return max(drafters, key=lambda name: self.row(name, category).figures.speedup)


def figures(runs: Sequence[Sequence[LaneMetrics]], base: Sequence[Sequence[LaneMetrics]]) -> Figures:
    """Figures of runs[repeat][prompt] against the baseline's runs of the same repeats and prompts."""
    rates = [decode_rate(repeat) for repeat in runs]
    speedups = [rate / decode_rate(plain) for rate, plain in zip(rates, base, strict=True)]
    everything = [m for repeat in runs for m in repeat]
    gaps = sorted(gap for m in everything for gap in m.gaps) or [float("nan")]
    whole = RaceMetrics(LaneMetrics.pooled(m for repeat in base for m in repeat), LaneMetrics.pooled(everything))
    lane = whole.speculative
    return Figures(
        decode_rate=statistics.median(rates),
        decode_rate_low=min(rates),
        decode_rate_high=max(rates),
        end_to_end_rate=lane.tokens / lane.clock,
        ttft=statistics.median(m.ttft for m in everything),
        tpot=1 / statistics.median(rates),
        gap_p50=statistics.median(gaps),
        gap_p99=gaps[math.ceil(0.99 * len(gaps)) - 1],
        gap_max=gaps[-1],
        tokens_per_pass=lane.tokens / lane.rounds,
        alpha=lane.alpha,
        draft_acceptance=lane.draft_acceptance,
        expected_alpha=lane.expected_alpha,
        c=whole.c if lane.drafted else None,
        v=whole.v if lane.drafted else None,
        o=whole.o if lane.drafted else None,
        speedup=statistics.median(speedups),
        speedup_low=min(speedups),
        speedup_high=max(speedups),
        predicted=whole.predicted_speedup,
    )


def decode_rate(runs: Iterable[LaneMetrics]) -> float:
    """Tokens a second of several texts together, first bursts left out."""
    tokens = seconds = 0.0
    for m in runs:
        if len(m.bursts) > 1:
            (first, k), (last, n) = m.bursts[0], m.bursts[-1]
            tokens, seconds = tokens + n - k, seconds + last - first
    return tokens / seconds if seconds else float("nan")


def overall(rows: Sequence[Row]) -> Row:
    """The mean of a contender's categories."""

    def mean(field: str) -> float | None:
        known = [value for row in rows if (value := getattr(row.figures, field)) is not None]
        return statistics.mean(known) if known else None

    texts: dict[GreedyVerdict, int] = {}
    for row in rows:
        for verdict, count in row.texts.items():
            texts[verdict] = texts.get(verdict, 0) + count
    means = Figures(**{field: mean(field) for field in Figures.model_fields})
    return Row(contender=rows[0].contender, category=ALL, figures=means, texts=texts)


_SPEED: dict[str, Callable[[Figures], str]] = {
    "tokens/s": lambda f: f"{f.decode_rate:.1f}",
    "range": lambda f: f"{f.decode_rate_low:.1f}-{f.decode_rate_high:.1f}",
    "end to end": lambda f: f"{f.end_to_end_rate:.1f}",
    "TTFT ms": lambda f: f"{1e3 * f.ttft:.0f}",
    "TPOT ms": lambda f: f"{1e3 * f.tpot:.1f}",
    "gaps p50/p99/max ms": lambda f: f"{1e3 * f.gap_p50:.0f}/{1e3 * f.gap_p99:.0f}/{1e3 * f.gap_max:.0f}",
    "speedup": lambda f: f"{f.speedup:.2f}",
    "(range)": lambda f: f"{f.speedup_low:.2f}-{f.speedup_high:.2f}",
    "predicted": lambda f: _or_dash(f.predicted),
}
_REASONS: dict[str, Callable[[Figures], str]] = {
    "tokens/pass": lambda f: f"{f.tokens_per_pass:.2f}",
    "alpha": lambda f: _or_dash(f.alpha),
    "expected alpha": lambda f: _or_dash(f.expected_alpha),
    "of drafted": lambda f: _or_dash(f.draft_acceptance),
    "c": lambda f: _or_dash(f.c, 3),
    "v": lambda f: _or_dash(f.v),
    "o": lambda f: _or_dash(f.o),
}


def _or_dash(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def tables(report: Report, category: str) -> list[Table]:
    """Every contender on one category (or ALL): how fast, and why."""
    count = report.prompts.get(category, sum(report.prompts.values()))
    speed, reasons = Table(title=f"{category}: {count} prompts", title_justify="left"), Table()
    for table, columns in ((speed, _SPEED), (reasons, _REASONS)):
        table.add_column("contender")
        for name in columns:
            table.add_column(name, justify="right")
    reasons.add_column("texts against the baseline's")
    for row in report.rows:
        if row.category == category:
            speed.add_row(row.contender, *(show(row.figures) for show in _SPEED.values()))
            texts = ", ".join(f"{n} {verdict.replace('_', '-')}" for verdict, n in sorted(row.texts.items()))
            reasons.add_row(row.contender, *(show(row.figures) for show in _REASONS.values()), texts)
    return [speed, reasons]


def speedup_table(report: Report) -> Table:
    """Speedup and tokens a pass of every contender by category: the benchmark on one screen."""
    found = Table(title="speedup over the baseline (tokens per target pass)")
    found.add_column("contender", no_wrap=True)
    for category in (*report.categories, "mean"):
        found.add_column(category, justify="right")
    for name in report.contenders:
        rows = [report.row(name, category).figures for category in (*report.categories, ALL)]
        found.add_row(name, *(f"{f.speedup:.2f} ({f.tokens_per_pass:.2f})" for f in rows))
    return found
