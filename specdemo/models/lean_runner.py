"""Runners of the lean forward."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.cache import KVCache
from specdemo.models.device import to_device
from specdemo.models.graphs import TREES, Record, RecordedPasses, cuda_recorder
from specdemo.models.lean import LeanModel
from specdemo.models.runner import require_behind
from specdemo.models.tree import Tree
from specdemo.models.vocabulary import draft_ids_of

_ROOMS = (512, 2048, 8192, 32768)
"""Tokens that a row of a cache on a GPU holds: few sizes, so that most runs can use the same ones. The first is for
batches, which take it times their rows."""
_EXIT = 0.8  # share of the layers behind which `shallow` leaves; by less, a model has not yet made up its mind
_KEPT = 3  # caches of each kind that wait for the next run: a race has so many lanes


class LeanLanguageModel:
    """See `LanguageModel`: weights of the Llama family."""

    takes_trees = True

    def __init__(self, model: LeanModel, info: ModelInfo, vocab_size: int, vocab_ids: Tensor | None = None) -> None:
        self.model, self.info = model, info
        self.device, self.max_length = model.device, model.max_length
        self.vocab_size, self.vocab_ids, self.depth = vocab_size, vocab_ids, model.depth
        self._idle: list[RecordedPasses] = []  # caches with their recordings that no runner uses, the latest last
        self._leasing = threading.Lock()
        self._recorder: Callable[[], Record] | None = None
        if self.device.type == "cuda":
            self._recorder = functools.partial(cuda_recorder, self.device)
        self._input_ids: Tensor | None = None
        if vocab_ids is not None:
            # Full id -> row of the reduced embedding; its last row stands for every token outside the vocabulary.
            self._input_ids = draft_ids_of(vocab_ids, int(vocab_ids.max()) + 1)

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(self.rows(ids), self.model.embedding)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)[..., : self.vocab_size]

    def runner(self, capacity: int, batch: int = 1, passes: Sequence[int] = (), taps: Sequence[int] = ()) -> LeanRunner:
        capacity = min(capacity, self.max_length)
        if self._recorder is None:
            return LeanRunner(self, KVCache(self.model, capacity, batch, taps), capacity)
        recorded = self._lease(capacity, self._recorder, batch, tuple(taps))
        # Whoever drafts from states drafts trees.
        recorded.prepare(passes, capacity, TREES if taps and passes else ())
        runner = LeanRunner(self, recorded.cache, capacity, recorded)
        weakref.finalize(runner, self._give_back, recorded)
        return runner

    def forget(self) -> None:
        """Drop what waits for the next run, where its memory is wanted."""
        with self._leasing:
            self._idle.clear()

    def _lease(
        self, capacity: int, recorder: Callable[[], Record], batch: int, taps: tuple[int, ...]
    ) -> RecordedPasses:
        """A cache with its recordings that no runner uses. They are kept between runs: recording takes seconds."""
        with self._leasing:
            fitting = [idle for idle in self._alike(batch, taps) if idle.cache.capacity >= capacity]
            if fitting:
                self._idle.remove(fitting[-1])
        if fitting:
            fitting[-1].cache.clear()
            return fitting[-1]
        room = next((room for room in _ROOMS[batch == 1 :] if room >= capacity), self.max_length)
        return RecordedPasses(self.model, KVCache(self.model, min(room, self.max_length), batch, taps), recorder())

    def _give_back(self, recorded: RecordedPasses) -> None:
        """Keep what a runner used, and of its kind the best."""
        self._idle.append(recorded)
        # A runner may be collected anywhere, even by who is leasing: then the next one that is given back clears up.
        if self._leasing.acquire(blocking=False):
            try:
                for idle in self._alike(recorded.cache.batch, recorded.cache.taps)[:-_KEPT]:
                    self._idle.remove(idle)
            finally:
                self._leasing.release()

    def _alike(self, batch: int, taps: tuple[int, ...]) -> list[RecordedPasses]:
        """Idle caches of as many rows with the same states, the best to keep last: with recordings, large enough for
        anybody, and used lately."""
        alike = [idle for idle in self._idle if (idle.cache.batch, idle.cache.taps) == (batch, taps)]
        return sorted(alike, key=lambda idle: (idle.count > 0, idle.cache.capacity))

    def rows(self, ids: Tensor) -> Tensor:
        """Embedding rows of the target's ids, both [batch, k]."""
        if self._input_ids is None:
            return ids
        known = ids < len(self._input_ids)
        return torch.where(known, self._input_ids[ids.clamp_max(len(self._input_ids) - 1)], self.vocab_size)


class LeanRunner:
    """See `Runner`. `recorded`: passes over this cache that can be replayed."""

    def __init__(
        self, weights: LeanLanguageModel, cache: KVCache, capacity: int, recorded: RecordedPasses | None = None
    ) -> None:
        self.weights, self.cache, self.capacity, self.recorded = weights, cache, capacity, recorded

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    @property
    def length(self) -> int:
        (length,) = self.cache.lengths
        return length

    @property
    def features(self) -> Tensor:
        return self.cache.features[0, : self.length]

    def forward(self, ids: list[int] | Tensor, tree: Tree | None = None) -> Tensor:
        model, given = self.weights.model, to_device(ids, self.weights.device)
        rows = self.weights.rows(torch.atleast_2d(given))
        if self.recorded and self.recorded.knows(rows.shape[1], tree is not None):
            logits = self.recorded.run(rows, tree)
        else:
            logits = model.logits(model.forward(rows, self.cache, tree))
        logits = logits[..., : self.weights.vocab_size]
        return logits if given.dim() == 2 else logits[0]

    @torch.inference_mode()
    def shallow(self, ids: Tensor) -> Tensor:
        """Append tokens [k] to the caches of the first layers alone; what the output layer would say there, [k, vocab].

        To be rolled back before any other pass: deeper layers have not seen them.
        """
        model, cache, k = self.weights.model, self.cache, len(ids)
        embedded = F.embedding(self.weights.rows(ids[None]), model.embedding)
        x = model.run_blocks(embedded, cache, cache.behind(k), max(1, round(_EXIT * model.depth)))
        cache.lengths = [cache.lengths[0] + k]
        return model.logits(model.norm(x))[0, :, : self.weights.vocab_size]

    def prefill(self, ids: list[int] | Tensor) -> None:
        given = to_device(ids, self.weights.device)
        self.weights.model.forward(self.weights.rows(torch.atleast_2d(given)), self.cache)

    def rollback(self, length: int | list[int]) -> None:
        lengths = [length] if isinstance(length, int) else length
        if not all(0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)):
            raise ValueError(f"a cache of {self.lengths} tokens cannot be rolled back to {lengths}")
        self.cache.lengths = list(lengths)

    def keep(self, length: int, slots: list[int]) -> None:
        require_behind(length, slots, self.length)
        self.cache.keep(length, slots)
