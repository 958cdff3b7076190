"""The pretended machine: its devices' memory, what each thread has chosen, captures underway, and counts."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from tests.fakecuda.memory import Allocation, Memory, Pool, storage_of

if TYPE_CHECKING:
    from tests.fakecuda.graphs import Capture

BLAMED = "specdemo"  # the package whose lines are named
STREAMS = 32  # torch hands out so many streams a device, in turn


class FakeCudaError(RuntimeError):
    """What CUDA or torch would raise."""


class Chosen(threading.local):
    """What one thread has chosen: its device, and its stream of each device. Stream 0 is the default one."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}


class Counts:
    """What happened since the last reset. waits: by (kind, line); attention: by (backend, queries, keys, masked)."""

    def __init__(self) -> None:
        self.launches = self.replays = self.kernels_replayed = self.captures = 0
        self.waits: Counter[tuple[str, str]] = Counter()
        self.operators: Counter[str] = Counter()
        self.attention: Counter[tuple[str, tuple[int, ...], tuple[int, ...], bool]] = Counter()
        self.freed_workspaces: Counter[str] = Counter()  # by line, where machine.workspaces is "count"


class Machine:
    """Everything that the pretended hardware and driver know. There is one, `machine`.

    capability: of all devices. workspaces: what replaying a graph whose cuBLAS workspace was freed does.
    """

    def __init__(self, devices: int = 2) -> None:
        self.chosen = Chosen()
        self.devices = [Memory(index) for index in range(devices)]
        self.allocations: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()
        self.pools: weakref.WeakValueDictionary[object, Pool] = weakref.WeakValueDictionary()
        self.workspaces_freed: Counter[tuple[int, int]] = Counter()  # how often, by device and stream
        self.serial = itertools.count(1)
        self._streams_made: Counter[int] = Counter()
        self.reset()

    def reset(self) -> None:
        """As after a start, for the calling thread: tensors and graphs stay what they are."""
        self.capability: tuple[int, int] = (9, 0)
        self.workspaces: Literal["error", "count", "off"] = "error"
        self.sync_debug = 0
        self.captures: dict[tuple[int, int], Capture] = {}
        self.chosen.device = 0
        self.chosen.streams.clear()
        torch.cuda.graph.default_capture_stream = None
        self._arriving: list[Callable[[], None]] = []
        for memory in self.devices:
            memory.reset()
        self.reset_counts()

    def reset_counts(self) -> None:
        self.counts = Counts()

    def stream(self, device: int) -> int:
        """The calling thread's stream there."""
        return self.chosen.streams.get(device, 0)

    def next_stream(self, device: int) -> int:
        self._streams_made[device] += 1
        return 1 + (self._streams_made[device] - 1) % STREAMS

    # --- Memory ---

    def allocation(self, tensor: torch.Tensor, device: int, capture: Capture | None) -> Allocation:
        """The memory that a CPU tensor stands for there: known already, or allocated now."""
        key = storage_of(tensor)
        found = self.allocations.get(key)
        if found is None:
            found = Allocation(tensor, device, self.devices[device] if capture is None else capture.pool)
            self.allocations[key] = found
            if capture is not None:
                capture.owns(found)
        return found

    def pool(self, handle: object, device: int) -> Pool:
        found = self.pools.get((handle, device))
        if found is None:
            found = self.pools[handle, device] = Pool(self.devices[device])
        return found

    # --- Waits and captures ---

    def wait(self, kind: str, debugged: bool = True) -> None:
        """The host waits for the device. debugged: whether torch.cuda.set_sync_debug_mode tells of it."""
        self.counts.waits[kind, self.line()] += 1
        self.forbid_in_captures(kind)
        if debugged and self.sync_debug:
            if self.sync_debug == 2:
                raise FakeCudaError(f"called a synchronizing CUDA operation: {kind} at {self.line()}")
            warnings.warn(f"called a synchronizing CUDA operation: {kind}", stacklevel=2)
        arriving, self._arriving = self._arriving, []
        for arrive in arriving:
            arrive()

    def arrives_later(self, arrive: Callable[[], None]) -> None:
        """To be run when somebody next waits."""
        self._arriving.append(arrive)

    def forbid_in_captures(self, kind: str) -> None:
        """Raise, and break captures, if something happens that some capture underway does not allow."""
        broken = [capture for capture in self.captures.values() if capture.forbids_here]
        for capture in broken:
            capture.broken = True
        if broken:
            raise FakeCudaError(f"operation not permitted when stream is capturing: {kind} at {self.line()}")

    def capture_on(self, device: int) -> Capture | None:
        """The capture that the calling thread's work on a device is part of."""
        return self.captures.get((device, self.stream(device)))

    def forbid_beside_capture(self, device: int) -> None:
        """Raise if the calling thread captures, and its work there is not part of that: it would be left out."""
        if self.capture_on(device) is None:
            for capture in self.captures.values():
                if capture.thread == threading.get_ident():
                    capture.broken = True
                    raise FakeCudaError(f"work on cuda:{device} beside the stream being captured at {self.line()}")

    @staticmethod
    def line() -> str:
        """The innermost line of the product that led here."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.split(".")[0] == BLAMED:
                return f"{name.partition('.')[2].replace('.', '/')}.py:{frame.f_lineno}"
            frame = frame.f_back
        return "elsewhere"


machine = Machine()
