"""Passes recorded once and replayed: what decoding costs on a GPU when Python has left the room.

A decoding pass is a few hundred small kernels, and launching them one by one takes longer than running them. A CUDA
graph replays them all with one call, on the same memory every time: so ids and the place in the cache are inputs that
lie on the device, and attention reads a fixed span of the cache, masked behind the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel

_SPANS = (512, 2048, 8192)  # cache slots that a recorded pass reads; beyond, the whole cache

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records a function of no arguments: how to run it again, and where its result then lies."""


class RecordedPasses:
    """Passes of one model over one cache of one row, a recording for each (number of tokens, span)."""

    def __init__(self, model: LeanModel, cache: KVCache, record: Record) -> None:
        self.model, self.cache, self._record = model, cache, record
        self._recorded: dict[tuple[int, int], _Pass] = {}

    def prepare(self, lengths: Iterable[int], end: int) -> None:
        """Record passes over each of `lengths` tokens for texts of up to `end` tokens, so that no run waits for it."""
        for span in self._spans(end):
            for k in lengths:
                if (k, span) not in self._recorded:
                    self._recorded[k, span] = _Pass(self.model, self.cache, k, span, self._record)

    def knows(self, k: int) -> bool:
        """Whether a pass over k tokens behind the cache's text is recorded."""
        return (k, self._span(self.cache.lengths[0] + k)) in self._recorded

    @torch.inference_mode()
    def run(self, rows: Tensor) -> Tensor:
        """Append embedding rows [1, k]; logits [1, k, vocab], valid until its next run."""
        k, start = rows.shape[1], self.cache.lengths[0]
        known = self._recorded[k, self._span(start + k)]
        known.ids.copy_(rows)
        known.start.fill_(start)
        known.replay()
        self.cache.lengths = [start + k]
        return known.logits

    def _span(self, end: int) -> int:
        return min(self.cache.capacity, next((span for span in _SPANS if span >= end), self.cache.capacity))

    def _spans(self, end: int) -> list[int]:
        last = self._span(end)
        return sorted({min(span, last) for span in (*_SPANS, last)})


class _Pass:
    @torch.inference_mode()
    def __init__(self, model: LeanModel, cache: KVCache, k: int, span: int, record: Record) -> None:
        self.ids = torch.zeros(1, k, dtype=torch.long, device=model.device)
        self.start = torch.zeros(1, dtype=torch.long, device=model.device)

        def once() -> Tensor:
            return model.logits(model.run(self.ids, cache, cache.ragged(k, self.start, span)))

        self.replay, self.logits = record(once)


def cuda_recorder() -> Record:
    """Records CUDA graphs that share memory for what happens inside them: of one cache's passes, one runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(once: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # It runs on a stream of its own first: kernels that load late must not load inside a recording.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                once()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = once()
        return graph.replay, result

    return record
