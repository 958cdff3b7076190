"""One run: its place in the line, decoding in its own thread, and the generator that turns its events into updates.

Everything about a run lives in its `Run`, which belongs to one visitor's session. Closing the generator (a closed
tab) or setting `stop` ends waiting at once and decoding within a model call.
"""

from __future__ import annotations

import contextvars
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from specdemo.errors import UserError
from specdemo.events import Draft, LaneEvent, RaceEvent, Round, TopLists, Trace
from specdemo.settings import Settings
from specdemo.ui.deltas import Encoder
from specdemo.ui.host import Host
from specdemo.ui.japanese import both
from specdemo.ui.line import Line

log = logging.getLogger(__name__)

UPDATE_SECONDS = 0.08  # about 12 updates a second: smooth to the eye, little work for the browser
POLL_SECONDS = 0.1  # between looks at what a run waits for
BEAT_SECONDS = 1.0  # a run says something at least this often: a closed tab is noticed by what is sent to it
WAITING_RUNS = 20
FAILED = "Something went wrong on the server. Press Run to try again; if it happens again, reload the page."

_DONE = object()


class Run:
    """A visitor's run: its trace so far, its deltas, its stop switch, which is set at its end, too."""

    def __init__(self, settings: Settings, id: str | None = None) -> None:
        self.id = id or uuid4().hex
        self.settings = settings
        self.stop = threading.Event()
        self.followed = threading.Event()  # by the next run of its visitor
        self.wrote = False
        self.deltas: list[str] = []
        self._events: list[RaceEvent] = []
        self._beats = 0
        self._said = time.monotonic()

    def keep(self, event: RaceEvent) -> None:
        self._events.append(event)
        self.wrote = self.wrote or (isinstance(event, LaneEvent) and isinstance(event.event, Draft | Round))

    def update(self, delta: dict[str, Any]) -> str:
        """The next update: this delta, numbered. A browser that has missed one before it asks for it."""
        delta["seq"] = len(self.deltas)
        self.deltas.append(json.dumps(delta, ensure_ascii=False, separators=(",", ":")))
        self._said = time.monotonic()
        return self._message(self.deltas[-1:])

    def beat(self) -> Iterator[str]:
        """Where nothing has been said for a while, an update without news. They are counted, since Gradio passes on
        only what differs."""
        if time.monotonic() - self._said >= BEAT_SECONDS:
            self._beats += 1
            self._said = time.monotonic()
            yield self._message([], f',"beat":{self._beats}')

    def missed(self, first: int) -> str:
        """All deltas from `first` on, for a browser that found a gap."""
        return self._message(self.deltas[max(0, first) :])

    def _message(self, deltas: Sequence[str], more: str = "") -> str:
        return f'{{"run":{json.dumps(self.id)},"deltas":[{",".join(deltas)}]{more}}}'

    def trace(self) -> Trace | None:
        """The trace so far; None before the race began."""
        return Trace.of(self._events) if self._events else None

    def top_lists(self, lane: str, number: int, index: int) -> TopLists | None:
        """What was recorded where a token was decided; `index` counts a round's drafts, then the target's token."""
        round_ = next((r for r in self._rounds(lane) if r.round == number), None)
        if round_ is None:
            return None
        tokens = [*round_.drafted, *([round_.final] if round_.final else [])]
        if not 0 <= index < len(tokens):
            return None
        if tokens[index].outcome == "resampled":
            # Decided, and so recorded, where the last of its siblings was refused.
            refused = [t for t in round_.drafted if t.outcome == "rejected" and t.position == tokens[index].position]
            return refused[-1].top if refused else None
        return tokens[index].top

    def _rounds(self, lane: str) -> Iterator[Round]:
        for event in self._events:
            if isinstance(event, LaneEvent) and event.lane == lane and isinstance(event.event, Round):
                yield event.event


class Streamer:
    """Runs races on a host, one after another."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._line = Line(WAITING_RUNS)
        # The line lets one run in at a time; this keeps the next one waiting for the model call that a closed tab
        # left behind.
        self._decoding = threading.Lock()

    def updates(self, run: Run) -> Iterator[str]:
        """JSON updates of a run, about twelve a second while something happens."""
        try:
            self._line.join(run)
            yield from self._wait_for_turn(run)
            yield from self._wait_for_models(run)
            if run.stop.is_set():
                yield run.update({"phase": "stopped"})
                return
            yield from self._race(run)
        except UserError as error:
            yield run.update({"phase": "error", "message": both(str(error))})
        except Exception:
            log.exception("A run failed")
            yield run.update({"phase": "error", "message": both(FAILED)})
        finally:
            run.stop.set()
            self._line.leave(run)

    def _wait_for_turn(self, run: Run) -> Iterator[str]:
        told = None
        while (place := self._line.place(run)).ahead and not run.stop.wait(POLL_SECONDS):
            if place != told:
                yield run.update({"phase": "queued", "a": place.ahead, "b": place.waiting})
                told = place
            yield from run.beat()

    def _wait_for_models(self, run: Run) -> Iterator[str]:
        if run.stop.is_set():
            return
        self._host.prepare(run.settings.pair)
        last = None
        while not (status := self._host.status()).ready and not run.stop.is_set():
            if status.error:
                raise UserError(status.error)
            if status != last:
                told = {"message": both(status.message), "fraction": status.fraction}
                yield run.update({"phase": "loading", **told})
                last = status
            yield from run.beat()
            run.stop.wait(POLL_SECONDS)

    def _race(self, run: Run) -> Iterator[str]:
        events: queue.Queue[Any] = queue.Queue()
        # The thread inherits the request's context: hosts that lend a GPU per request look for it there.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._decode, run, events), name="race", daemon=True).start()
        yield run.update({"phase": "running"})
        encoder = Encoder({drafter.id: drafter.label for drafter in self._host.drafters()})
        ended: bool | Exception = False
        while not ended:
            time.sleep(UPDATE_SECONDS)
            ended = _drain(events, run, encoder)
            if delta := encoder.delta():
                yield run.update(delta)
            yield from run.beat()
            if isinstance(ended, Exception):  # shown behind what came before it
                raise ended
        yield run.update({"phase": "stopped" if run.stop.is_set() else "done"})

    def _decode(self, run: Run, events: queue.Queue[Any]) -> None:
        try:
            with self._decoding:
                for event in self._host.race(run.settings, run.stop):
                    events.put(event)
            events.put(_DONE)
        except Exception as error:  # noqa: BLE001, handed to the generator, which knows how to tell the visitor
            events.put(error)


def _drain(events: queue.Queue[Any], run: Run, encoder: Encoder) -> bool | Exception:
    """Take what has arrived; True at the end of the race, or the error that ended it."""
    while True:
        try:
            item = events.get_nowait()
        except queue.Empty:
            return False
        if item is _DONE:
            return True
        if isinstance(item, Exception):
            return item
        run.keep(item)
        encoder.add(item)
