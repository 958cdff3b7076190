"""A benchmark's figures as tables, for the terminal and for the page that it leaves."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from specdemo.bench.report import ALL, MARK, Figures, Report, Row
from specdemo.metrics import shown

_SPEED: dict[str, Callable[[Figures], str]] = {
    "tokens/s": lambda f: shown(f.decode_rate, 1),
    "range": lambda f: f"{shown(f.decode_rate_low, 1)}-{shown(f.decode_rate_high, 1)}",
    "end to end": lambda f: shown(f.end_to_end_rate, 1),
    "TTFT ms": lambda f: shown(f.ttft, 0, 1e3),
    "TPOT ms": lambda f: shown(f.tpot, 1, 1e3),
    "gaps p50/p99/max ms": lambda f: "/".join(shown(gap, 0, 1e3) for gap in (f.gap_p50, f.gap_p99, f.gap_max)),
    "speed-up": lambda f: shown(f.speedup),
    "(range)": lambda f: f"{shown(f.speedup_low)}-{shown(f.speedup_high)}",
    "end-to-end speed-up": lambda f: shown(f.end_to_end_speedup),
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
    "speed-up": lambda f: shown(f.speedup),
}


def named(row: Row) -> str:
    """The contender's name, marked where something disturbed the figures."""
    return f"{row.contender} {MARK}" if row.disturbed else row.contender


def reasons_line(row: Row) -> list[str]:
    """A contender's name, its REASONS, and how its texts compare with the baseline's."""
    texts = ", ".join(f"{n} {verdict.replace('_', '-')}" for verdict, n in sorted(row.texts.items()))
    return [named(row), *(show(row.figures) for show in REASONS.values()), texts]


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
            speed.add_row(named(row), *(show(row.figures) for show in _SPEED.values()))
            reasons.add_row(*reasons_line(row))
    return [speed, reasons]


def speedup_table(report: Report) -> Table:
    """Speed-up and tokens a pass of every contender by category: the benchmark on one screen."""
    found = Table(title="speed-up over the baseline (tokens per target pass)")
    found.add_column("contender", no_wrap=True)
    for category in (*report.categories, "mean"):
        found.add_column(category, justify="right")
    for line in speedup_lines(report):
        found.add_row(*line)
    return found


def speedup_lines(report: Report) -> list[list[str]]:
    """Of every contender its name, and speed-up and tokens a pass by category and over all."""
    lines = []
    for name in report.contenders:
        rows = [report.row(name, category) for category in (*report.categories, ALL)]
        lines.append([name, *(_cell(row) for row in rows)])
    return lines


def _cell(row: Row) -> str:
    mark = MARK if row.disturbed else ""
    return f"{shown(row.figures.speedup)}{mark} ({shown(row.figures.tokens_per_pass)})"
