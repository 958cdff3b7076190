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

from specdemo.events import Lane, Trace
from specdemo.metrics import LaneMetrics, RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import drafters, race
from specdemo.settings import Settings
from specdemo.ui.verdict import undrafted

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
    """The text of each lane that drafts in colours, refused drafts where they fell, and the numbers; below, in which
    rounds nothing was drafted and what went wrong."""
    racing = drafters(trace.settings)
    for lane, name in racing.items():
        if len(racing) > 1:
            console.rule(name, align="left")
        text = Text()
        for round_ in trace.rounds(lane):
            for token in round_.in_line:
                text.append(token.text, style=STYLES[token.outcome])
        console.print(text)
    rows = [(name if len(racing) > 1 else "", _of(metrics, lane), trace) for lane, name in racing.items()]
    console.print(table(rows, by="drafter" if len(racing) > 1 else "category", mean_row=False))
    _remarks(racing, [metrics], console)


def _remarks(racing: dict[Lane, str], races: list[RaceMetrics], console: Console) -> None:
    """What no table shows: where nothing was drafted, and the errors that lanes ended in."""
    for lane, name in racing.items():
        if told := undrafted(LaneMetrics.pooled(getattr(race, lane) for race in races)):
            console.print(f"{name}: {told['en']}" if len(racing) > 1 else told["en"])
    ends = [lane.end for race in races for lane in (race.baseline, race.speculative, race.rival) if lane.end]
    for message in dict.fromkeys(end.message for end in ends if end.message):
        console.print(message)


def _of(metrics: RaceMetrics, lane: Lane) -> RaceMetrics:
    return metrics.of_rival if lane == "rival" else metrics


def run_all(loaded: LoadedPair, base: dict, prompts: list[tuple[str, str]], console: Console) -> None:
    """Race every prompt and print, for each drafter, a row for each category and one for their mean."""
    races = [
        (category, *collect(loaded, Settings.checked(**base, prompt=prompt)))
        for category, prompt in track(prompts, "Racing", console=console)
    ]
    racing = drafters(races[0][1].settings)
    for lane, name in racing.items():
        made = table((category, _of(metrics, lane), trace) for category, trace, metrics in races)
        made.title = name if len(racing) > 1 else None
        console.print(made)
    _remarks(racing, [metrics for _, _, metrics in races], console)


def table(rows: Iterable[tuple[str, RaceMetrics, Trace]], by: str = "category", mean_row: bool = True) -> Table:
    """Means over the races of each category, or of what else they go by; tokens per pass and alpha over their sums."""
    grouped: dict[str, list[tuple[RaceMetrics, Trace]]] = defaultdict(list)
    for category, metrics, trace in rows:
        grouped[category].append((metrics, trace))
    made = Table(by, "tokens/pass", "alpha", "baseline tok/s", "speculative tok/s", "speed-up", "predicted", "texts")
    lines = [_line(races) for races in grouped.values()]
    for category, line in zip(grouped, lines, strict=True):
        made.add_row(category, *(f"{value:.2f}" for value in line), _texts(grouped[category]))
    if mean_row and len(lines) > 1:
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
