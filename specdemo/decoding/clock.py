"""A lane's own clock: the compute time it has used, and nothing else."""

from __future__ import annotations

import itertools
import time

import torch


class Clock:
    """Runs between `start` and `stop`, counts laps, and stands still otherwise (while the page is fed, text is
    decoded, or the other lane has the device).

    On CUDA the marks are events in the stream, so measuring forces no synchronisation: a lap is read when the
    round's result has reached the host anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list = []
        self.seconds = 0.0

    def start(self) -> None:
        self._marks = [self._mark()]

    def lap(self) -> None:
        """End one phase and begin the next."""
        self._marks.append(self._mark())

    def stop(self) -> list[float]:
        """Seconds of each phase since `start`; their sum joins `seconds`."""
        self.lap()
        if self._cuda:
            self._marks[-1].synchronize()
        laps = [self._between(a, b) for a, b in itertools.pairwise(self._marks)]
        self.seconds += sum(laps)
        return laps

    def _mark(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a, b) -> float:
        return a.elapsed_time(b) / 1000 if self._cuda else b - a
