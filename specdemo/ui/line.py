"""The line in front of the models: one run has the turn, the others wait and know their place.

Gradio's own queue tells a place when somebody joins or starts and keeps silent when somebody leaves; and what waits in
it is not ours to stop.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from specdemo.errors import UserError


class Place(NamedTuple):
    """Where a run stands: so many are `ahead` of it, the one that has the turn included, and so many wait."""

    ahead: int
    waiting: int


class Line:
    """First come, first served. `most` may wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._members: list[object] = []
        self._lock = threading.Lock()

    def join(self, member: object) -> None:
        """Raises UserError where nobody else may wait."""
        with self._lock:
            if len(self._members) > self._most:
                raise UserError("Too many are waiting in line. Press Run again in a minute.")
            self._members.append(member)

    def leave(self, member: object) -> None:
        """No effect on somebody who is not in the line."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def place(self, member: object) -> Place:
        with self._lock:
            return Place(self._members.index(member), len(self._members) - 1)
