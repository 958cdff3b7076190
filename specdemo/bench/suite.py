"""Runs a benchmark: every contender on every prompt, in turn, again and again.

The order is A B C A B C and not A A B B C C, so that a machine that slows down or speeds up on the way does so for
everybody, and speed-ups are taken between neighbours in time. A run that something outside disturbed is run again at
once.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypeVar

from specdemo.bench.contenders import Contender, Written
from specdemo.bench.report import Report, Row, figures, overall
from specdemo.bench.roofline import Roofline, roofline
from specdemo.bench.runs import Runs
from specdemo.bench.steady import Measured, machine_times
from specdemo.bench.surroundings import commit, peak_memory
from specdemo.events import GreedyVerdict
from specdemo.longwork import Work
from specdemo.metrics import LaneMetrics, RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import compare_greedy, machine
from specdemo.settings import Settings

T = TypeVar("T")
Prompt = tuple[str, str]
"""(category, prompt)."""
_TRIES = 3  # of a run that is disturbed every time


@dataclass
class Suite:
    """What to run. contenders: the first is the baseline that the others are compared with. repeats: of everything.

    kept: runs that were measured before, which are not run again; `keep` is given every new one. `work` hears what is
    being run, and how far that is. wall, processor, machine: clocks.
    """

    loaded: LoadedPair
    contenders: Sequence[Contender]
    prompts: Sequence[Prompt]
    settings: dict
    repeats: int
    work: Work = field(default_factory=Work)
    kept: Sequence[Measured] = ()
    keep: Callable[[Measured], None] = lambda run: None
    wall: Callable[[], float] = time.perf_counter
    processor: Callable[[], float] = time.process_time
    machine: Callable[[], tuple[float, float] | None] = machine_times

    def __post_init__(self) -> None:
        self.runs = Runs([contender.name for contender in self.contenders], [category for category, _ in self.prompts])
        for run in self.kept:
            if run.repeat < self.repeats:
                self.runs.add(run)

    def run(self) -> None:
        """Everything that was not kept, warmed up first. Raises Interrupted where `work` was stopped, and UserError for
        settings that the pair cannot serve."""
        every = [
            (contender, at, repeat)
            for repeat in range(self.repeats)
            for at in range(len(self.prompts))
            for contender in self.contenders
        ]
        waiting = [(done, *one) for done, one in enumerate(every) if not self.runs.has(one[0].name, *one[1:])]
        for contender in self.contenders if waiting else ():
            self.work(f"warming up: {contender.name}", None)
            self.runs.add(self._measured(contender, -1, 0, max_tokens=8))
        for done, contender, at, repeat in waiting:
            for again in range(_TRIES):
                where = f"repeat {repeat + 1} of {self.repeats}, prompt {at + 1} ({self.prompts[at][0]})"
                note = " again: it was disturbed" if again else ""
                self.work(f"{where}, {contender.name}{note}", done / len(every))
                run = self._measured(contender, at, repeat)
                self.keep(run)
                self.runs.add(run)
                if not self.runs.disturbance(run):
                    break

    def _measured(self, contender: Contender, at: int, repeat: int, **more: int) -> Measured:
        """One text, in its warm-up that of the first prompt. Raises Interrupted where it was cut short."""
        prompt = self.prompts[max(at, 0)][1]
        settings = self._settings(prompt, **more)
        before = self._clocks()
        written = apart(contender.write, settings, self.work.stop)
        times = {name: clock - before[name] for name, clock in self._clocks().items()}
        self.work.check()  # what was cut short is no measurement
        first = not more and repeat == 0 and contender is not self.contenders[0]
        return Measured(
            contender=contender.name,
            prompt=at,
            repeat=repeat,
            ids=written.ids,
            metrics=written.metrics,
            **times,
            verdict=self._compare(settings, at, written) if first and settings.temperature == 0 else None,
        )

    def _clocks(self) -> dict[str, float]:
        """The times of a `Measured`, of which those count that say something on this device."""
        wall = {"wall": self.wall()}
        if self.loaded.target.device.type != "cpu":
            return wall
        processor, whole = self.processor(), self.machine()
        more = {} if whole is None else {"others": whole[0] - processor, "free": whole[1]}
        return wall | {"processor": processor} | more

    def _compare(self, settings: Settings, at: int, written: Written) -> GreedyVerdict:
        ids = self.loaded.tokens.encode(settings.prompt, settings.chat)
        plain = self.runs.chosen(self.contenders[0].name, at, 0)
        return apart(compare_greedy, self.loaded.target, ids, plain.ids, written.ids).verdict

    def _settings(self, prompt: str, **more: int) -> Settings:
        return Settings.checked(**self.settings | more, prompt=prompt)

    def report(self, complete: bool = True) -> Report | None:
        """What came of it, or of the turns that were finished; None where none was begun."""
        runs, rows = self.runs.whole(), []
        categories = [name for name in dict.fromkeys(runs.categories) if runs.prompts(name)]
        if not categories:
            return None
        for contender in self.contenders[: len(runs.contenders)]:
            own = [self._row(contender, category, runs) for category in categories]
            rows += [*own, overall(own)]
        return Report(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=machine(self.loaded.target.device),
            commit=commit(),
            complete=complete,
            target=self.loaded.target.info,
            draft=self.loaded.draft.info if self.loaded.draft else None,
            settings=self.settings,
            prompts={category: len(runs.prompts(category)) for category in categories},
            repeats=self.repeats,
            costs=self.loaded.costs,
            steps=dict(self.loaded.steps),
            rows=rows,
            disturbed=runs.disturbed(),
            processor_share=self._share(runs),
            peak_memory=peak_memory(self.loaded.target.device),  # before the roofline's own buffer
            roofline=self._roofline(runs) if complete else None,
        )

    def _row(self, contender: Contender, category: str, runs: Runs) -> Row:
        turns, disturbed = zip(*(runs.turns(contender.name, at) for at in runs.prompts(category)), strict=True)
        own = [run for run in runs.of(contender.name) if runs.categories[run.prompt] == category]
        return Row(
            contender=contender.name,
            category=category,
            figures=figures(turns),
            drafter=getattr(contender, "drafter", None) or "",
            texts=dict(Counter(run.verdict for run in own if run.verdict)),
            undrafted=dict(LaneMetrics.pooled(run.metrics for run in own).undrafted),
            disturbed=sum(disturbed),
        )

    def _share(self, runs: Runs) -> float | None:
        shares = [run.share for run in runs.of(self.contenders[0].name) if run.share is not None]
        return statistics.median(shares) if shares else None

    def _roofline(self, runs: Runs) -> Roofline | None:
        plain = [run.metrics for run in runs.of(self.contenders[0].name) if not runs.disturbance(run)]
        whole = LaneMetrics.pooled(plain)
        step = RaceMetrics(baseline=whole).target_step
        if step is None:
            return None
        chat = self._settings(self.prompts[0][1]).chat
        lengths = [len(self.loaded.tokens.encode(prompt, chat)) for _, prompt in self.prompts]
        context = sum(lengths) / len(lengths) + whole.tokens / len(plain) / 2
        try:
            return apart(roofline, self.loaded.target, context, step)
        except RuntimeError:  # no room for its buffer beside the models: the other figures stand
            return None


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Do it in a thread that ends, as the page does: a thread that has computed and lives on slows down all others
    (see Host)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *arguments).result()
