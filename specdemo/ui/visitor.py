"""One visitor: the runs of a page, of which at most one waits or decodes."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

from specdemo.errors import UserError
from specdemo.ui.stream import Run

OVERTAKEN = 16  # stops that are remembered until their run comes


class Visitor:
    """The run that goes on, and the last one that wrote something: the page shows it until the next one writes.

    Requests of a page may overtake each other, so runs are named by the page, and a run may be stopped before it comes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[Run] = []
        self._stopped: deque[str] = deque(maxlen=OVERTAKEN)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Visitor:
        """Gradio copies a State's first value for every session: each begins anew."""
        return Visitor()

    def begin(self, run: Run, after: str | None = None) -> None:
        """Take a run in; `after` is the one that the page stopped last, as it may not have heard of that yet.

        Raises UserError while another run goes on. One that is being stopped is no other: the new run waits for it.
        """
        if after:
            self.halt(after)
        with self._lock:
            if not all(earlier.stop.is_set() for earlier in self._runs):
                raise UserError("A run of this page is still going on. Press Stop first.")
            if run.id in self._stopped:
                run.stop.set()
            for earlier in self._runs:
                earlier.followed.set()
            self._runs = [*[earlier for earlier in self._runs if earlier.wrote][-1:], run]

    def halt(self, run_id: str) -> None:
        with self._lock:
            run = self._find(run_id)
            if run is None:
                self._stopped.append(run_id)
            else:
                run.stop.set()

    def answer(self, question: dict[str, Any]) -> str:
        """What the page's script asks about a run: missed deltas, a token's top lists, the trace."""
        ask = question.get("ask")
        answer: dict[str, Any] = {"ask": ask, "id": question.get("id"), "run": question.get("run")}
        run = self._find(question.get("run"))
        if run is None:
            answer["unknown"] = True
        elif ask == "missed":
            answer["update"] = run.missed(int(question["from"]))
        elif ask == "token":
            top = run.top_lists(str(question["lane"]), int(question["round"]), int(question["index"]))
            answer["top"] = top.model_dump() if top else None
        elif ask == "trace":
            trace = run.trace()
            answer["trace"] = trace.to_json() if trace else None
        return json.dumps(answer, ensure_ascii=False)

    def _find(self, run_id: Any) -> Run | None:
        return next((run for run in self._runs if run.id == run_id), None)
