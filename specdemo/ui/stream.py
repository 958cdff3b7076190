"""One run: decoding in its own thread, and the generator that turns its events into updates for one page.

Everything about a run lives in its `Run`, which belongs to one visitor's session. Closing the generator (a closed
tab, a cancelled queue entry) or setting `stop` ends decoding within a model call.
"""

from __future__ import annotations

import contextvars
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from specdemo.errors import UserError
from specdemo.events import LaneEvent, RaceEvent, Round, TopLists, Trace
from specdemo.settings import Settings
from specdemo.ui.deltas import Encoder
from specdemo.ui.host import Host
from specdemo.ui.japanese import both

log = logging.getLogger(__name__)

UPDATE_SECONDS = 0.08  # about 12 updates a second: smooth to the eye, little work for the browser
WINDOW = 4  # deltas repeated in each update, since a busy browser may skip an update or two
FAILED = "Something went wrong on the server. Press Run to try again; if it happens again, reload the page."

_DONE = object()


class Run:
    """A visitor's run: its trace so far, its deltas, its stop switch."""

    def __init__(self, settings: Settings) -> None:
        self.id = uuid4().hex
        self.settings = settings
        self.stop = threading.Event()
        self.deltas: list[str] = []
        self._events: list[RaceEvent] = []
        self._recent: deque[str] = deque(maxlen=WINDOW)

    def keep(self, event: RaceEvent) -> None:
        self._events.append(event)

    def update(self, delta: dict[str, Any]) -> str:
        """The next update: this delta, numbered, behind the few before it."""
        delta["seq"] = len(self.deltas)
        self.deltas.append(json.dumps(delta, ensure_ascii=False, separators=(",", ":")))
        self._recent.append(self.deltas[-1])
        return self._message(self._recent)

    def missed(self, first: int) -> str:
        """All deltas from `first` on, for a browser that found a gap."""
        return self._message(self.deltas[max(0, first) :])

    def _message(self, deltas: Any) -> str:
        return f'{{"run":"{self.id}","deltas":[{",".join(deltas)}]}}'

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
        if (
            tokens[index].outcome == "resampled"
        ):  # decided where a draft was refused, the last of siblings: recorded there
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
        # The queue lets one run in at a time; this keeps the next one waiting for the model call that a closed tab
        # left behind.
        self._decoding = threading.Lock()

    def updates(self, run: Run) -> Iterator[str]:
        """JSON updates of a run, about twelve a second while something happens."""
        try:
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

    def _wait_for_models(self, run: Run) -> Iterator[str]:
        self._host.prepare(run.settings.pair)
        last = None
        while not (status := self._host.status()).ready and not run.stop.is_set():
            if status.error:
                raise UserError(status.error)
            if status != last:
                told = {"message": both(status.message), "fraction": status.fraction}
                yield run.update({"phase": "loading", **told})
                last = status
            time.sleep(0.1)

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
