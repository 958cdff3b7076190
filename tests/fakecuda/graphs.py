"""Streams, events, and CUDA graphs: what is captured, and what a replay of it does."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tests.fakecuda.machine import FakeCudaError, machine
from tests.fakecuda.memory import Allocation, Pool, spoil, storage_of
from tests.fakecuda.trees import tensors_in

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::baddbmm"}  # what cuBLAS computes

Step = tuple[Callable[..., Any], tuple, dict[str, Any], Any, bool]
"""A function, its arguments, what it gave, and whether it writes to its arguments."""


class Stream:
    """Stands for torch._C._CudaStreamBase."""

    def __new__(
        cls, priority: int = 0, stream_id: int | None = None, device_index: int | None = None, **_: object
    ) -> Stream:
        made = object.__new__(cls)
        made.device_index = machine.chosen.device if device_index is None else device_index
        made.stream_id = machine.next_stream(made.device_index) if stream_id is None else stream_id
        made.device_type, made.device = 1, torch.device("cuda", made.device_index)
        made.cuda_stream = made.stream_id
        return made

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def synchronize(self) -> None:
        machine.wait("stream.synchronize")

    def query(self) -> bool:
        machine.forbid_in_captures("stream.query")
        return True


class Event:
    """Stands for torch._C._CudaEventBase. It is over as soon as it is recorded."""

    def __new__(cls, enable_timing: bool = False, **_: object) -> Event:
        made = object.__new__(cls)
        made.timing, made.at, made.device_index, made.cuda_event = enable_timing, None, None, 0
        return made

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, stream: Stream) -> None:
        if self.device_index not in (None, stream.device_index):
            raise FakeCudaError(
                f"Event device cuda:{self.device_index} does not match recording stream's device {stream.device}."
            )
        self.device_index, self.at = stream.device_index, time.perf_counter()

    def wait(self, stream: Stream) -> None:
        pass

    def query(self) -> bool:
        machine.forbid_in_captures("event.query")
        return True

    def synchronize(self) -> None:
        machine.wait("event.synchronize", debugged=False)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds."""
        if self.at is None or other.at is None:
            raise FakeCudaError("Both events must be recorded before calculating elapsed time.")
        if not (self.timing and other.timing):
            raise FakeCudaError("Both events must be created with argument 'enable_timing=True'.")
        if self.device_index != other.device_index:
            raise FakeCudaError("elapsed_time between events of two devices")
        return 1e3 * (other.at - self.at)


class Capture:
    """What a graph recorded: operations on memory, and which memory that was."""

    def __init__(self, pool: Pool, device: int, stream: int, mode: str) -> None:
        self.pool, self.device, self.stream, self.mode = pool, device, stream, mode
        self.thread, self.order = threading.get_ident(), next(machine.serial)
        self.broken = self.multiplies = False
        self.kernels = 0
        self.workspaces_freed = machine.workspaces_freed[device, stream]
        self._steps: list[Step] = []
        self._made: dict[int, torch.Tensor] = {}  # by storage; they are kept, so that none of it is used again
        self._results: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self._read: set[int] = set()  # storages on the device from before the capture

    def __del__(self) -> None:
        """With its graph: torch.cuda.CUDAGraph's own __del__ calls nobody else's."""
        machine.workspaces_freed[self.device, self.stream] += 1

    @property
    def forbids_here(self) -> bool:
        """Whether the calling thread may not wait now, nor ask the driver."""
        return self.mode == "global" or (self.mode == "thread_local" and self.thread == threading.get_ident())

    def made_here(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) in self._made

    def add(self, name: str, step: Step, is_kernel: bool) -> None:
        """Record an operation. Where it does not write to its operands, a replay copies its result to `out`."""
        _, args, kwargs, out, writes = step
        self._steps.append(step)
        self.kernels += is_kernel
        self.multiplies |= name in _PRODUCTS
        if is_kernel:
            operands = {storage_of(t) for t in tensors_in((args, kwargs))} - self._made.keys()
            self._read |= {storage for storage in operands if storage in machine.allocations}
        if not writes or not is_kernel:
            self._made |= {storage_of(t): t for t in tensors_in(out) if storage_of(t) not in self._read}

    def owns(self, allocation: Allocation) -> None:
        """That memory was allocated in this capture."""
        self._results.add(allocation)

    def spoil(self) -> None:
        """What it would compute is undefined: it has not run yet, or its memory was used for something else."""
        for allocation in list(self._results):
            spoil(allocation.tensor)

    def run(self) -> None:
        if not all(storage in machine.allocations for storage in self._read):
            raise FakeCudaError("an illegal memory access was encountered: a graph reads a tensor that is gone")
        for func, args, kwargs, out, writes in self._steps:
            computed = func(*args, **kwargs)
            if not writes:
                for kept, new in zip(tensors_in(out), tensors_in(computed), strict=True):
                    kept.copy_(new)


class Graph:
    """Stands for torch._C._CUDAGraph."""

    def __new__(cls, keep_graph: bool = False) -> Graph:
        made = object.__new__(cls)
        made._capture, made._pool = None, None
        return made

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        device = machine.chosen.device
        stream = machine.stream(device)
        if stream == 0:
            raise FakeCudaError("CUDA graphs must be captured on a non-default stream.")
        if (device, stream) in machine.captures:
            raise FakeCudaError("that stream is being captured already")
        self._pool = pool if pool is not None else (0, next(machine.serial))
        self._capture = Capture(machine.pool(self._pool, device), device, stream, capture_error_mode)
        machine.captures[device, stream] = self._capture

    def capture_end(self) -> None:
        capture = self._capture
        if machine.captures.pop((machine.chosen.device, machine.stream(machine.chosen.device)), None) is not capture:
            raise FakeCudaError("a capture must end on the stream where it began")
        if capture.broken:
            self.reset()
            raise FakeCudaError("operation failed due to a previous error during capture")
        if not capture.kernels:
            warnings.warn("The CUDA Graph is empty.", stacklevel=3)
        capture.spoil()
        capture.pool.graphs.add(self)
        machine.counts.captures += 1

    def instantiate(self) -> None:
        pass

    @torch.inference_mode()
    def replay(self) -> None:
        capture = self._capture
        if capture is None:
            raise FakeCudaError("Called CUDAGraph::replay without a preceding successful capture.")
        if machine.capture_on(machine.chosen.device) is not None:
            raise FakeCudaError(f"a graph is replayed inside a capture at {machine.line()}")
        self._require_workspace()
        for other in list(capture.pool.graphs):
            if other._capture is not None and other._capture.order > capture.order:
                other._capture.spoil()  # its results may lie where this one computes
        capture.run()
        machine.counts.launches += 1
        machine.counts.replays += 1
        machine.counts.kernels_replayed += capture.kernels

    def _require_workspace(self) -> None:
        """Raise, or count, where the workspace of this graph's matrix products was freed with another graph."""
        capture = self._capture
        freed = machine.workspaces_freed[capture.device, capture.stream]
        if machine.workspaces == "off" or not capture.multiplies or freed == capture.workspaces_freed:
            return
        machine.counts.freed_workspaces[machine.line()] += 1
        if machine.workspaces == "error":
            raise FakeCudaError(
                "an illegal memory access was encountered: destroying another graph, captured on the same stream, has "
                f"freed the cuBLAS workspace of this one, replayed at {machine.line()}"
            )

    def reset(self) -> None:
        self._capture = None

    def pool(self) -> object:
        return self._pool

    def enable_debug_mode(self) -> None:
        pass

    def register_generator_state(self, *_: object) -> None:
        pass
