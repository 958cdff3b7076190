"""A race in the terminal: coloured text for one prompt, or a table over a file of prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdemo.bench.report import MARK
from specdemo.bench.steady import pause
from specdemo.bench.surroundings import identity
from specdemo.errors import UserError
from specdemo.events import Lane, Trace
from specdemo.journal import Journal
from specdemo.longwork import Interrupted, Work, watched
from specdemo.metrics import LaneMetrics, RaceMetrics, shown
from specdemo.models.costs import Costs
from specdemo.models.loading import LoadedPair
from specdemo.race import check_prompts, drafters, race, resolved
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


def run_one(
    loaded: LoadedPair,
    settings: Settings,
    console: Console,
    beside: Console,
    file: Path | None = None,
    costs: Mapping[Lane, Costs] | None = None,
) -> Trace:
    """Run a race and show it (see `show`), once its trace is in `file`. Where the work is stopped, what there is is
    kept and shown before Interrupted is raised. costs: as for a race."""
    work = Work()
    with work.shown():
        trace = Trace.of(race(loaded, settings, work.stop, costs))
    try:
        if file:
            _keep(trace, file)
    finally:
        show(trace, console, beside)
    work.check()
    return trace


def _keep(trace: Trace, file: Path) -> None:
    try:
        file.write_text(trace.to_json(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"The trace could not be written to {file}: {error.strerror}.") from error


def show(trace: Trace, console: Console, beside: Console) -> None:
    """The text of each lane that drafts in colours, refused drafts where they fell; and `beside` it the numbers, in
    which rounds nothing was drafted, and what went wrong. Where no terminal shows colours, the text is the answer (of
    the first lane that drafts) as the model wrote it."""
    racing = drafters(trace.settings)
    if console.is_terminal:
        _show_coloured(trace, racing, console)
        _show_numbers(trace, racing, beside)
        return
    _show_numbers(trace, racing, beside)  # first: whoever reads the pipe may have left
    try:
        console.file.write(f"{trace.text(next(iter(racing), 'baseline'))}\n")
        console.file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"The answer could not be written to standard output: {error.strerror}.") from error


def _show_coloured(trace: Trace, racing: dict[Lane, str], console: Console) -> None:
    for lane, name in racing.items():
        if len(racing) > 1:
            console.rule(name, align="left")
        text = Text()
        for round_ in trace.rounds(lane):
            for token in round_.in_line:
                text.append(token.text, style=STYLES[token.outcome])
        console.print(text)


def _show_numbers(trace: Trace, racing: dict[Lane, str], console: Console) -> None:
    metrics = RaceMetrics.of_trace(trace)
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


class Raced(BaseModel):
    """The race of a prompt (its index): a line of the journal."""

    prompt: int
    trace: Trace


def run_all(
    loaded: LoadedPair,
    base: dict,
    prompts: list[tuple[str, str]],
    console: Console,
    file: Path | None = None,
    resume: bool = False,
) -> None:
    """Race every prompt and print, for each drafter, a row for each category and one for their mean.

    file: the journal that keeps every race from its end on; resume: go on with what it holds. Where the work is
    stopped, what there is is printed before Interrupted is raised.
    """
    every = [resolved(loaded, Settings.checked(**base, prompt=prompt)) for _, prompt in prompts]
    check_prompts(loaded, prompts, every[0].chat)
    head = {"prompts": prompts, "settings": base} | identity(loaded)
    journal = Journal(file, Raced, head, resume) if file else None
    races = {raced.prompt: raced.trace for raced in (journal.records if journal else [])}
    with watched(console) as work, suppress(Interrupted):
        for at, settings in enumerate(every):
            work(f"racing prompt {at + 1} of {len(every)} ({prompts[at][0]})", at / len(every))
            if at in races:
                continue
            trace = Trace.of(race(loaded, settings, work.stop))
            work.check()  # what was cut short is no race
            races[at] = trace
            if journal:
                journal.append(Raced(prompt=at, trace=trace))
    if journal:
        journal.close()
    racing = drafters(every[0])
    for lane, name in racing.items() if races else ():
        rows = [(prompts[at][0], _of(RaceMetrics.of_trace(trace), lane), trace) for at, trace in races.items()]
        made = table(rows)
        made.title = name if len(racing) > 1 else None
        console.print(made)
    _remarks(racing, [RaceMetrics.of_trace(trace) for trace in races.values()], console)
    for at, trace in races.items():
        for note in _pauses(trace):
            console.print(f"{MARK} Prompt {at + 1} ({prompts[at][0]}): {note}", highlight=False)
    work.check()


def _pauses(trace: Trace) -> list[str]:
    """What disturbed a race from outside, and whose figures it spoils: a mean says nothing of it."""
    metrics = RaceMetrics.of_trace(trace)
    found = {lane: pause(getattr(metrics, lane)) for lane in trace.lanes}
    return [f"the {lane} lane stood still for {gap:.2g} s; run it again." for lane, gap in found.items() if gap]


def table(rows: Iterable[tuple[str, RaceMetrics, Trace]], by: str = "category", mean_row: bool = True) -> Table:
    """Means over the races of each category, or of what else they go by; tokens per pass and alpha over their sums."""
    grouped: dict[str, list[tuple[RaceMetrics, Trace]]] = defaultdict(list)
    for category, metrics, trace in rows:
        grouped[category].append((metrics, trace))
    made = Table(by, "tokens/pass", "alpha", "baseline tok/s", "speculative tok/s", "speed-up", "end-to-end speed-up")
    made.add_column("predicted")
    made.add_column("texts")
    lines = [_line(races) for races in grouped.values()]
    for category, line in zip(grouped, lines, strict=True):
        made.add_row(category, *map(shown, line), _texts(grouped[category]))
    if mean_row and len(lines) > 1:
        made.add_section()
        made.add_row("mean", *(shown(_average(column)) for column in zip(*lines, strict=True)), "")
    return made


def _line(races: list[tuple[RaceMetrics, Trace]]) -> list[float | None]:
    lane = LaneMetrics.pooled(metrics.speculative for metrics, _ in races)
    numbers = [metrics for metrics, _ in races if metrics.speedup]
    return [
        lane.tokens_per_pass,
        lane.alpha,
        _average(metrics.baseline.decode_rate for metrics in numbers),
        _average(metrics.speculative.decode_rate for metrics in numbers),
        _average(metrics.speedup for metrics in numbers),
        _average(metrics.end_to_end_speedup for metrics in numbers),
        _average(metrics.predicted_speedup for metrics in numbers),
    ]


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _texts(races: list[tuple[RaceMetrics, Trace]]) -> str:
    verdicts = [trace.check.verdict for _, trace in races]
    return ", ".join(f"{verdicts.count(v)} {v.replace('_', '-')}" for v in sorted(set(verdicts)))
