"""A race in the terminal: coloured text for one prompt, or a table over a file of prompts."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from statistics import mean

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from specdemo.events import Round, Token, Trace
from specdemo.metrics import LaneMetrics, RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import race
from specdemo.settings import Settings

STYLES = {
    "accepted": "green underline",
    "resampled": "yellow",
    "bonus": "bright_blue bold",
    "rejected": "red strike",
    "discarded": "bright_black strike",
    "cut": "bright_black strike",
    "plain": "",
}


def collect(loaded: LoadedPair, settings: Settings) -> tuple[Trace, RaceMetrics]:
    """Run a race to its end; its trace and its numbers."""
    events = list(race(loaded, settings, threading.Event()))
    return Trace.of(events), RaceMetrics.of(events)


def show(trace: Trace, metrics: RaceMetrics, console: Console) -> None:
    """The speculative lane's text in colours, refused drafts where they fell, and the numbers."""
    text = Text()
    for round_ in trace.rounds("speculative"):
        for token in _in_order(round_):
            text.append(token.text, style=STYLES[token.outcome])
    console.print(text)
    console.print(table([("", metrics, trace)]))


def _in_order(round_: Round) -> list[Token]:
    return [*round_.drafted, *([round_.final] if round_.final else [])]


def run_all(loaded: LoadedPair, base: dict, prompts: list[tuple[str, str]], console: Console) -> None:
    """Race every prompt and print a row for each category and one for their mean."""
    rows = [
        (category, *reversed(collect(loaded, Settings.checked(**base, prompt=prompt))))
        for category, prompt in track(prompts, "Racing", console=console)
    ]
    console.print(table(rows))


def table(rows: Iterable[tuple[str, RaceMetrics, Trace]]) -> Table:
    """Means over the races of each category; tokens per pass and alpha over their sums."""
    grouped: dict[str, list[tuple[RaceMetrics, Trace]]] = defaultdict(list)
    for category, metrics, trace in rows:
        grouped[category].append((metrics, trace))
    made = Table(
        "category", "tokens/pass", "alpha", "baseline tok/s", "speculative tok/s", "speed-up", "predicted", "texts"
    )
    lines = [_line(races) for races in grouped.values()]
    for category, line in zip(grouped, lines, strict=True):
        made.add_row(category, *(f"{value:.2f}" for value in line), _texts(grouped[category]))
    if len(lines) > 1:
        made.add_section()
        made.add_row("mean", *(f"{mean(column):.2f}" for column in zip(*lines, strict=True)), "")
    return made


def _line(races: list[tuple[RaceMetrics, Trace]]) -> list[float]:
    lane = LaneMetrics.pooled(metrics.speculative for metrics, _ in races)
    numbers = [metrics for metrics, _ in races if metrics.speedup]

    def average(values: Iterable[float | None]) -> float:
        known = [value for value in values if value is not None]
        return mean(known) if known else float("nan")

    return [
        lane.tokens_per_pass or 0.0,
        lane.alpha or 0.0,
        average(metrics.baseline.decode_rate for metrics in numbers),
        average(metrics.speculative.decode_rate for metrics in numbers),
        average(metrics.speedup for metrics in numbers),
        average(metrics.predicted_speedup for metrics in numbers),
    ]


def _texts(races: list[tuple[RaceMetrics, Trace]]) -> str:
    verdicts = [trace.check.verdict for _, trace in races]
    return ", ".join(f"{verdicts.count(v)} {v.replace('_', '-')}" for v in sorted(set(verdicts)))
