"""Memory of the pretended devices: bytes that tensors hold, and when there are too many."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tests.fakecuda.graphs import Graph

_GRAIN = 512  # bytes; the caching allocator rounds up to that
_GIB = 1 << 30


def storage_of(tensor: torch.Tensor) -> int:
    """A name for the memory of a CPU tensor, its own as long as the memory lives."""
    return tensor.untyped_storage()._cdata


def spoil(tensor: torch.Tensor) -> None:
    """Fill with what no computation should read: NaN, or numbers far out of range."""
    with torch.inference_mode():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(float("nan"))
        elif tensor.dtype == torch.bool:
            tensor.fill_(True)
        else:
            tensor.fill_(torch.iinfo(tensor.dtype).max // 3)


class Memory:
    """One device's. Bytes: `allocated` to tensors now, its `peak`, `reserved` by the allocator, `limit`.

    allocations: how many there were. fail_at: n makes the n-th allocation from now run out of memory, that one only.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.allocated = self.peak = self.reserved = 0
        self._lock = threading.RLock()  # tensors die in any thread, and while one is made
        self.reset()

    def reset(self) -> None:
        """Start counting again; tensors that live keep what they have."""
        self.limit = 16 * _GIB
        self.allocations, self.fail_at = 0, None
        self.peak = self.allocated
        self.release_unused()

    def take(self, size: int) -> None:
        """Raises torch.OutOfMemoryError."""
        if not size:
            return
        with self._lock:
            self.allocations += 1
            if self.fail_at is not None:
                self.fail_at -= 1
            if self.fail_at == 0 or self.allocated + size > self.limit:
                self.fail_at = None if self.fail_at == 0 else self.fail_at
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size} bytes. GPU {self.index} has a total capacity of "
                    f"{self.limit} bytes of which {self.limit - self.allocated} bytes are free."
                )
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
            self.reserved = max(self.reserved, self.allocated)

    def give(self, size: int) -> None:
        with self._lock:
            self.allocated -= size

    def release_unused(self) -> None:
        """What torch.cuda.empty_cache does."""
        with self._lock:
            self.reserved = self.allocated

    @property
    def free(self) -> int:
        """As the driver sees it: what the allocator keeps for later is not free."""
        return self.limit - self.reserved


class Pool:
    """Memory that graphs share: as much as lived together in the largest capture, until graphs and results are gone."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.live, self.size = memory, 0, 0
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()

    def take(self, size: int) -> None:
        growth = self.live + size - self.size
        if growth > 0:
            self.memory.take(growth)
            self.size += growth
        self.live += size

    def give(self, size: int) -> None:
        self.live -= size

    def __del__(self) -> None:
        self.memory.give(self.size)


class Allocation:
    """Memory of the tensors that share one storage; free when the last of them dies.

    Graphs that recorded its address do not keep it alive. tensor: the CPU's, as it was made.
    """

    def __init__(self, tensor: torch.Tensor, device: int, owner: Memory | Pool) -> None:
        self.tensor, self.device, self._owner, self._size = tensor, device, owner, 0
        size = -(-tensor.untyped_storage().nbytes() // _GRAIN) * _GRAIN
        owner.take(size)
        self._size = size

    def __del__(self) -> None:
        self._owner.give(self._size)
