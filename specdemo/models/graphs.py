"""Passes recorded once and replayed: what decoding costs on a GPU when Python has left the room.

A decoding pass is a few hundred small kernels, and launching them one by one takes longer than running them. A CUDA
graph replays them all with one call, on the same memory every time: so ids, the place in the cache and the shape of a
tree are inputs that lie on the device, and attention reads a fixed span of the cache, masked behind the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdemo.models.cache import KVCache
from specdemo.models.device import to_device
from specdemo.models.lean import LeanModel
from specdemo.models.tree import Tree

_SPANS = (512, 2048, 8192)  # cache slots that a recorded pass reads; beyond, the whole cache

TREES = (9, 17, 33, 65)
"""Tokens of a recorded pass over a tree, the text's last one among them: smaller trees are filled up to the next."""

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records a function of no arguments: how to run it again, and where its result then lies."""


class RecordedPasses:
    """Passes of one model over one cache, a recording for each (number of tokens, span, chain or tree). Trees are for
    caches of one row."""

    def __init__(self, model: LeanModel, cache: KVCache, record: Record) -> None:
        self.model, self.cache, self._record = model, cache, record
        self._recorded: dict[tuple[int, int, bool], _Pass] = {}
        self._logits = torch.empty(0, 0)  # of whichever pass ran last, [tokens, vocab]: a large vocabulary's take room

    @property
    def count(self) -> int:
        """Recordings."""
        return len(self._recorded)

    def prepare(self, lengths: Iterable[int], end: int, trees: Iterable[int] = ()) -> None:
        """Record passes over each of `lengths` tokens, and over trees of up to each of `trees`, for texts of up to
        `end` tokens, so that no run waits for it. What is longer than a span is left to be run as it is."""
        wanted = [*((k, False) for k in lengths), *((k, True) for k in trees)]
        batch = self.cache.batch
        rows = batch * max((k for k, _ in wanted), default=0)
        if rows > len(self._logits):
            self._logits = torch.empty(rows, self.model.vocab_size, device=self.model.device)
        for span in self._spans(end):
            for k, tree in wanted:
                if k <= span and (k, span, tree) not in self._recorded:
                    into = self._logits[: batch * k].view(batch, k, -1)
                    self._recorded[k, span, tree] = _Pass(self.model, self.cache, span, into, self._record, tree)

    def knows(self, k: int, tree: bool = False) -> bool:
        """Whether a pass over k tokens behind the cache's text is recorded."""
        return self._find(k, tree) is not None

    @torch.inference_mode()
    def run(self, rows: Tensor, tree: Tree | None = None) -> Tensor:
        """Append embedding rows [batch, k], the nodes of a tree where there is one; logits [batch, k, vocab], valid
        until the next run of any pass."""
        k, lengths = rows.shape[1], self.cache.lengths
        known = self._find(k, tree is not None)
        if known is None:
            raise ValueError(f"no pass over {k} tokens behind {lengths} was recorded")
        known.ids[:, :k].copy_(rows)
        known.starts.copy_(to_device(lengths, known.starts.device))
        if tree is not None:
            known.layout.copy_(to_device(_layout(tree, len(known.layout)), known.layout.device))
        known.replay()
        self.cache.lengths = [length + k for length in lengths]
        return known.logits[:, :k]

    def _find(self, k: int, tree: bool) -> _Pass | None:
        size = next((size for size in TREES if size >= k), k) if tree else k
        end = max(self.cache.lengths) + size
        return self._recorded.get((size, self._span(end), tree)) if end <= self.cache.capacity else None

    def _span(self, end: int) -> int:
        return min(self.cache.capacity, next((span for span in _SPANS if span >= end), self.cache.capacity))

    def _spans(self, end: int) -> list[int]:
        last = self._span(end)
        return sorted({min(span, last) for span in (*_SPANS, last)})


class _Pass:
    """Over k tokens behind `starts` [batch], reading `span` slots; its logits go to `into` [batch, k, vocab]. layout
    [k, k + 1] of a tree, see `_layout`."""

    @torch.inference_mode()
    def __init__(self, model: LeanModel, cache: KVCache, span: int, into: Tensor, record: Record, tree: bool) -> None:
        batch, k, _ = into.shape
        self.ids = torch.zeros(batch, k, dtype=torch.long, device=model.device)
        self.starts = torch.zeros(batch, dtype=torch.long, device=model.device)
        self.layout = torch.zeros(k if tree else 0, k + 1, dtype=torch.uint8, device=model.device)

        def once() -> Tensor:
            if tree:
                seen, depths = self.layout[:, :k].bool(), self.layout[:, k].long()
                place = cache.branching(seen, depths, self.starts, span)
            else:
                place = cache.ragged(k, self.starts, span)
            return into.copy_(model.logits(model.run(self.ids, cache, place)))

        self.replay, self.logits = record(once)


def _layout(tree: Tree, size: int) -> Tensor:
    """What a pass has to know of a tree, [size, size + 1] uint8: which nodes each node sees, and its depth. The nodes
    that fill it up see themselves and the text, so that they compute numbers, which nobody reads."""
    layout = torch.eye(size, size + 1, dtype=torch.uint8)
    k, cpu = len(tree), torch.device("cpu")
    layout[:k, :k] = tree.mask(cpu)
    layout[:k, size] = tree.depths(cpu)
    return layout


class _OwnStream:
    """A stream that nobody else records on while this lives. (torch hands out 32 streams in turn, so new ones would
    soon be old ones.)"""

    _free: ClassVar[dict[int, list[torch.cuda.Stream]]] = {}  # by device

    def __init__(self, device: torch.device) -> None:
        free = self._free.setdefault(device.index, [])
        self.stream = free.pop() if free else torch.cuda.Stream(device)

    def __del__(self) -> None:
        self._free[self.stream.device_index].append(self.stream)


@dataclass(frozen=True)
class _Replay:
    """Replays a graph, and has its stream for as long as the graph lives."""

    graph: torch.cuda.CUDAGraph
    own: _OwnStream

    def __call__(self) -> None:
        self.graph.replay()


def cuda_recorder(device: torch.device) -> Record:
    """Records CUDA graphs of one cache's passes on a device. They share memory for what happens inside them, since one
    runs at a time, and a stream: in torch 2.13 a graph that is dropped takes its stream's cuBLAS workspace with it, so
    only graphs that are dropped together may share one (pytorch #175276, #193402)."""
    pool, own = torch.cuda.graph_pool_handle(), _OwnStream(device)
    stream = own.stream

    def record(once: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        with torch.cuda.device(device):
            # It runs on that stream first: kernels that load late must not load inside a recording.
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    once()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # What other threads ask of the device meanwhile, a page for its free memory say, is none of this recording.
            # The outer context leaves the stream where memory runs out, which torch's own does not.
            capturing = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
            with torch.cuda.stream(stream), capturing:
                result = once()
        return _Replay(graph, own), result

    return record
