"""The file that a benchmark leaves for people: one HTML page with its charts and tables, needing nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Callable

import plotly.graph_objects as go
import plotly.io

from specdemo.bench.report import ALL, Figures, Report
from specdemo.bench.tables import REASONS, reasons_line, speedup_lines

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
.scroll { overflow-x: auto }
p.note { color: #555 }
"""


def to_html(report: Report) -> str:
    """The whole page; plotly's script is part of it, so it opens without a network."""
    charts = [speedups(report), rates(report), latencies(report)]
    parts = [
        plotly.io.to_html(chart, full_html=False, include_plotlyjs=index == 0) for index, chart in enumerate(charts)
    ]
    machine = report.machine
    where = f"{machine.processor}, {machine.device}, {machine.threads} threads, {report.target.dtype}"
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    facts = [
        f"{report.created}: {where}. Python {machine.python}, {packages}. Commit {report.commit or 'unknown'}.",
        f"Target {_model(report.target)}" + (f"; draft {_model(report.draft)}." if report.draft else "."),
        f"{sum(report.prompts.values())} prompts, {report.repeats} repeats in turn. {json.dumps(report.settings)}",
    ]
    notes = "".join(f'<p class="note">{html.escape(fact)}</p>' for fact in facts)
    speedup_table = _table(["contender", *report.categories, ALL], speedup_lines(report))
    # Acceptance and costs over all categories.
    reasons = _table(["contender", *REASONS, "texts"], [reasons_line(report.row(name)) for name in report.contenders])
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in report.facts())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>specdemo benchmark</title><style>{_STYLE}</style><body><h1>specdemo benchmark</h1>{notes}"
        f"{''.join(parts)}<h2>Speed-up (tokens per target pass)</h2>{speedup_table}"
        f"<h2>Why</h2>{reasons}<ul>{lines}</ul></body></html>"
    )


def speedups(report: Report) -> go.Figure:
    """Measured speed-up by category, with the spread over repeats."""
    return _bars(report, "Speed-up over the baseline", _speedup, skip=1)


def rates(report: Report) -> go.Figure:
    """Decode tokens a second by category, with the spread over repeats."""
    return _bars(report, "Decode tokens/s", _rate)


def latencies(report: Report) -> go.Figure:
    """What a reader feels: the median gap between bursts, up to the 99th percentile."""
    return _bars(report, "Gap between bursts, ms (p50, line to p99)", _gaps)


Bar = tuple[float | None, float | None, float | None]
"""Value, low, high; None where there is nothing to show."""


def _speedup(f: Figures) -> Bar:
    return f.speedup, f.speedup_low, f.speedup_high


def _rate(f: Figures) -> Bar:
    return f.decode_rate, f.decode_rate_low, f.decode_rate_high


def _gaps(f: Figures) -> Bar:
    return tuple(None if gap is None else 1e3 * gap for gap in (f.gap_p50, f.gap_p50, f.gap_p99))


def _bars(report: Report, title: str, take: Callable[[Figures], Bar], skip: int = 0) -> go.Figure:
    """Grouped bars: take(figures) gives (value, low, high); `skip` leaves out the first contenders."""
    categories = [*report.categories, ALL]
    figure = go.Figure()
    for name in report.contenders[skip:]:
        values = [take(report.row(name, category).figures) for category in categories]
        spread = {
            "array": [None if value is None else high - value for value, _, high in values],
            "arrayminus": [None if value is None else value - low for value, low, _ in values],
        }
        figure.add_bar(name=name, x=categories, y=[value for value, *_ in values], error_y=spread)
    figure.update_layout(title=title, barmode="group", template="plotly_white", legend={"orientation": "h", "y": -0.2})
    return figure


def _table(head: list[str], lines: list[list[str]]) -> str:
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    rest = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{first}</tr>{rest}</table></div>'


def _model(info) -> str:
    return f"{info.name} ({info.parameters / 1e6:.0f} M, {(info.sha256 or info.revision)[:12] or 'no hash'})"
