"""The numbers of a benchmark, from runs to a table and a file."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import BaseModel
from rich.table import Table

from specdemo.bench.roofline import Roofline
from specdemo.events import GreedyVerdict, Machine, ModelInfo, NoDraft
from specdemo.metrics import LaneMetrics, RaceMetrics, percentile
from specdemo.models.costs import Costs

ALL = "all"
"""The row over every category: means of the categories' figures, each counting the same."""


class Figures(BaseModel):
    """One contender on one category. Times in seconds, rates in tokens a second; None where something has no meaning.

    decode_rate is that of all prompts together, (n - k) / (t_last - t_first) with n tokens and k in the first burst. Of
    repeats: decode_rate and speedup are medians, *_low and *_high the least and largest. speedup is against the
    baseline in the same repeat. c, v, o are in baseline steps.
    """

    decode_rate: float | None = None
    decode_rate_low: float | None = None
    decode_rate_high: float | None = None
    end_to_end_rate: float
    ttft: float
    tpot: float | None = None
    gap_p50: float | None = None
    gap_p99: float | None = None
    gap_max: float | None = None
    tokens_per_pass: float
    alpha: float | None = None
    draft_acceptance: float | None = None
    expected_alpha: float | None = None
    c: float | None = None
    v: float | None = None
    o: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    predicted: float | None = None


class Row(BaseModel):
    """Figures of a contender on a category, and how its greedy texts compare with the baseline's. drafter: its name
    where it is one of this project's, running alone. undrafted: its rounds without a draft, by the reason."""

    contender: str
    category: str
    figures: Figures
    drafter: str = ""
    texts: dict[GreedyVerdict, int] = {}
    undrafted: dict[NoDraft, int] = {}


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
    prompts_sha256: str = ""
    repeats: int
    costs: Costs
    steps: dict[str, float] = {}
    """Draft steps in target steps, by what computes them, as measured at load."""
    rows: list[Row]
    batches: list[BatchRow] = []
    roofline: Roofline | None = None
    peak_memory: int = 0

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
        lines = []
        if self.roofline:
            lines.append(self.roofline.sentence())
        for row in self.batches:
            lines.append(
                f"Batch of {row.batch}, {row.category}, gamma {row.gamma}: {row.plain_rate:.0f} -> "
                f"{row.speculative_rate:.0f} tokens/s ({row.speedup:.2f} x, {row.tokens_per_pass:.2f} tokens a pass "
                f"and row, alpha {row.alpha:.2f})"
            )
        best = {category: name for category in self.categories if (name := self.best(category))}
        gains = [self.row(name, category).figures.speedup for category, name in best.items()]
        for (category, name), gain in zip(best.items(), gains, strict=True):
            lines.append(f"Best in {category}: {name} ({gain:.2f} x)")
        if gains:
            lines.append(f"Best drafter of each category, mean: {statistics.mean(gains):.2f} x")
        packages = ", ".join(f"{name} {version}" for name, version in self.machine.packages.items())
        lines.append(f"{self.machine.processor}, {self.machine.threads} threads, {self.target.dtype}, {packages}")
        lines.append(f"Peak memory {self.peak_memory / 1e9:.2f} GB, everything that ran included")
        return lines


def figures(runs: Sequence[Sequence[LaneMetrics]], base: Sequence[Sequence[LaneMetrics]]) -> Figures:
    """Figures of runs[repeat][prompt] against the baseline's runs of the same repeats and prompts."""
    pairs = [(decode_rate(own), decode_rate(plain)) for own, plain in zip(runs, base, strict=True)]
    rates = _known(own for own, _ in pairs)
    speedups = [own / plain for own, plain in pairs if own and plain]
    everything = [m for repeat in runs for m in repeat]
    gaps = sorted(gap for m in everything for gap in m.gaps)
    whole = RaceMetrics(LaneMetrics.pooled(m for repeat in base for m in repeat), LaneMetrics.pooled(everything))
    lane = whole.speculative
    return Figures(
        decode_rate=_median(rates),
        decode_rate_low=min(rates, default=None),
        decode_rate_high=max(rates, default=None),
        end_to_end_rate=lane.tokens / lane.clock,
        ttft=statistics.median(m.ttft for m in everything),
        tpot=1 / statistics.median(rates) if rates else None,
        gap_p50=_median(gaps),
        gap_p99=percentile(gaps, 0.99) if gaps else None,
        gap_max=max(gaps, default=None),
        tokens_per_pass=lane.tokens / lane.rounds,
        alpha=lane.alpha,
        draft_acceptance=lane.draft_acceptance,
        expected_alpha=lane.expected_alpha,
        c=whole.c if lane.drafted else None,
        v=whole.v if lane.drafted else None,
        o=whole.o if lane.drafted else None,
        speedup=_median(speedups),
        speedup_low=min(speedups, default=None),
        speedup_high=max(speedups, default=None),
        predicted=whole.predicted_speedup,
    )


def decode_rate(runs: Iterable[LaneMetrics]) -> float | None:
    """Tokens a second of several texts together, first bursts left out; None where no text has a second one."""
    tokens = seconds = 0.0
    for m in runs:
        if len(m.bursts) > 1:
            (first, k), (last, n) = m.bursts[0], m.bursts[-1]
            tokens, seconds = tokens + n - k, seconds + last - first
    return tokens / seconds if seconds else None


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
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.mean(known) if known else None


_SPEED: dict[str, Callable[[Figures], str]] = {
    "tokens/s": lambda f: shown(f.decode_rate, 1),
    "range": lambda f: f"{shown(f.decode_rate_low, 1)}-{shown(f.decode_rate_high, 1)}",
    "end to end": lambda f: shown(f.end_to_end_rate, 1),
    "TTFT ms": lambda f: shown(f.ttft, 0, 1e3),
    "TPOT ms": lambda f: shown(f.tpot, 1, 1e3),
    "gaps p50/p99/max ms": lambda f: "/".join(shown(gap, 0, 1e3) for gap in (f.gap_p50, f.gap_p99, f.gap_max)),
    "speedup": lambda f: shown(f.speedup),
    "(range)": lambda f: f"{shown(f.speedup_low)}-{shown(f.speedup_high)}",
    "predicted": lambda f: shown(f.predicted),
}
REASONS: dict[str, Callable[[Figures], str]] = {
    "tokens/pass": lambda f: shown(f.tokens_per_pass),
    "alpha": lambda f: shown(f.alpha),
    "expected alpha": lambda f: shown(f.expected_alpha),
    "of drafted": lambda f: shown(f.draft_acceptance),
    "c": lambda f: shown(f.c, 3),
    "v": lambda f: shown(f.v),
    "o": lambda f: shown(f.o),
    "predicted": lambda f: shown(f.predicted),
    "speedup": lambda f: shown(f.speedup),
}


def shown(value: float | None, digits: int = 2, unit: float = 1.0) -> str:
    """A number as tables have it; a dash where there is none."""
    return "-" if value is None else f"{unit * value:.{digits}f}"


def reasons_line(row: Row) -> list[str]:
    """A contender's name, its REASONS, and how its texts compare with the baseline's."""
    texts = ", ".join(f"{n} {verdict.replace('_', '-')}" for verdict, n in sorted(row.texts.items()))
    return [row.contender, *(show(row.figures) for show in REASONS.values()), texts]


def tables(report: Report, category: str) -> list[Table]:
    """Every contender on one category (or ALL): how fast, and why."""
    count = report.prompts.get(category, sum(report.prompts.values()))
    speed, reasons = Table(title=f"{category}: {count} prompts", title_justify="left"), Table()
    for table, columns in ((speed, _SPEED), (reasons, REASONS)):
        table.add_column("contender")
        for name in columns:
            table.add_column(name, justify="right")
    reasons.add_column("texts against the baseline's")
    for row in report.rows:
        if row.category == category:
            speed.add_row(row.contender, *(show(row.figures) for show in _SPEED.values()))
            reasons.add_row(*reasons_line(row))
    return [speed, reasons]


def speedup_table(report: Report) -> Table:
    """Speedup and tokens a pass of every contender by category: the benchmark on one screen."""
    found = Table(title="speedup over the baseline (tokens per target pass)")
    found.add_column("contender", no_wrap=True)
    for category in (*report.categories, "mean"):
        found.add_column(category, justify="right")
    for line in speedup_lines(report):
        found.add_row(*line)
    return found


def speedup_lines(report: Report) -> list[list[str]]:
    """Of every contender its name, and speedup and tokens a pass by category and over all."""
    lines = []
    for name in report.contenders:
        cells = [report.row(name, category).figures for category in (*report.categories, ALL)]
        lines.append([name, *(f"{shown(f.speedup)} ({f.tokens_per_pass:.2f})" for f in cells)])
    return lines
