"""A lane's own clock: the compute time it has used, and nothing else."""

from __future__ import annotations

import time

import torch


class Clock:
    """Runs between `start` and `stop`, counts phases, and stands still otherwise (while the page is fed, text is
    decoded, or the other lane has the device).

    On CUDA the marks are events in the stream, so measuring forces no synchronisation: times are read from them only
    when somebody asks, which is after the round's result has reached the host anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._since = None
        self._phases: list[tuple] = []  # (mark, mark), not yet read
        self._read = 0.0

    def start(self) -> None:
        self._since = self._mark()

    def lap(self) -> None:
        """End one phase and begin the next."""
        now = self._mark()
        self._phases.append((self._since, now))
        self._since = now

    def stop(self) -> None:
        """End a phase and stand still."""
        self.lap()
        self._since = None

    def phases(self) -> list[float]:
        """Seconds of each phase since this was last asked."""
        phases, self._phases = self._phases, []
        self._wait_for(phases)
        seconds = [self._between(*phase) for phase in phases]
        self._read += sum(seconds)
        return seconds

    @property
    def seconds(self) -> float:
        """Compute time so far: the phases asked for and those still to be."""
        self._wait_for(self._phases)
        return self._read + sum(self._between(*phase) for phase in self._phases)

    def _wait_for(self, phases: list[tuple]) -> None:
        if self._cuda and phases and not (last := phases[-1][1]).query():
            last.synchronize()

    def _mark(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a, b) -> float:
        return a.elapsed_time(b) / 1000 if self._cuda else b - a
