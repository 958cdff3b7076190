"""Work that takes minutes or hours: it says how far it has come, and can be stopped without losing what it has made."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

T = TypeVar("T")
_EVERY = 10.0  # seconds between two lines where there is no terminal


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. Raised where work next says how far it is: never in the middle of something."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class Work:
    """Hears what is being done and how far that is (0 to 1; None before it has begun), and tells the console: in a bar
    on a terminal, elsewhere in a line every ten seconds. Tells nobody without a console.

    `stop` is set where somebody wants the work to end; saying anything then raises Interrupted.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop = threading.Event()
        self._console, self._clock = console, clock
        self._number = int(signal.SIGINT)
        self._bar: Progress | None = None
        self._first: tuple[float, float] | None = None
        self._told: float | None = None
        self._last = 0.0

    def __call__(self, message: str, fraction: float | None) -> None:
        self.check()
        now, line = self._clock(), message
        if fraction is not None:
            if self._first is None or fraction < self._last:  # work of another kind begins
                self._first, self._told = (now, fraction), None
            self._last = fraction
            line = f"{self._share(now, fraction)}: {message}"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], description=line, completed=fraction)
        elif self._console and (self._told is None or now - self._told >= _EVERY):
            self._told = now
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def check(self) -> None:
        """Raises Interrupted where the work was stopped."""
        if self.stop.is_set():
            raise Interrupted(self._number)

    def each(self, items: Iterable[T], total: int, message: str) -> Iterator[T]:
        """The items, saying before each which of `total` it is."""
        for done, item in enumerate(items):
            self(f"{message} {done + 1} of {total}", done / total)
            yield item

    def _share(self, now: float, done: float) -> str:
        """'25 %, 3 min left': by the pace since work began, or was taken up again."""
        began, at = self._first
        left = f", {duration((now - began) * (1 - done) / (done - at))} left" if done > at else ""
        return f"{100 * done:.0f} %{left}"

    def interrupt(self, number: int, _frame: object = None) -> None:
        """A signal's handler. A second signal ends the process at once, as if nobody had asked for the first."""
        self._number = number
        self.stop.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """With the bar where there is a terminal, and with signals that stop the work."""
        with _handled(self.interrupt):
            if self._console is None or not self._console.is_terminal:
                yield
                return
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            with Progress(*columns, console=self._console, transient=True) as self._bar:
                self._bar.add_task("", total=1.0)
                try:
                    yield
                finally:
                    self._bar = None


@contextmanager
def _handled(handler: Callable[..., None]) -> Iterator[None]:
    """SIGINT and SIGTERM go to the handler; one that is ignored (work in the background of a shell) stays so."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread():
        before = {}  # Python lets no other thread handle signals
    before = {number: earlier for number, earlier in before.items() if earlier not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def watched(console: Console) -> Iterator[Work]:
    """Work that the console shows, and that Ctrl-C and SIGTERM stop where it next says something."""
    work = Work(console)
    with work.shown():
        yield work


@contextmanager
def resumable(console: Console, how: str) -> Iterator[None]:
    """Work that was stopped ends the command with a sentence that says how to go on, and with the status that shells
    give to the signal."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        console.print(f"Stopped. {how}", highlight=False, markup=False)
        raise typer.Exit(128 + getattr(stopped, "number", int(signal.SIGINT))) from None


def duration(seconds: float) -> str:
    """'40 s', '3 min', '2 h 10 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
