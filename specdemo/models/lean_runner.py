"""Runners of the lean forward."""

from __future__ import annotations

import torch
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.lean import KVCache, LeanModel
from specdemo.models.runner import Output
from specdemo.models.tree import Tree


class LeanLanguageModel:
    """See `LanguageModel`: weights of the Llama family."""

    def __init__(self, model: LeanModel, info: ModelInfo, vocab_size: int, vocab_ids: Tensor | None = None) -> None:
        self.model, self.info = model, info
        self.device, self.max_length = model.device, model.max_length
        self.vocab_size, self.vocab_ids = vocab_size, vocab_ids
        self._input_ids: Tensor | None = None
        if vocab_ids is not None:
            # Full id -> row of the reduced embedding; its last row stands for every token outside the vocabulary.
            self._input_ids = torch.full((int(vocab_ids.max()) + 1,), vocab_size, device=self.device)
            self._input_ids[vocab_ids] = torch.arange(vocab_size, device=self.device)

    def runner(self, capacity: int, batch: int = 1) -> LeanRunner:
        return LeanRunner(self, min(capacity, self.max_length), batch)

    def rows(self, ids: list[int] | Tensor) -> Tensor:
        """Embedding rows of the target's ids, [batch, k]."""
        tensor = torch.as_tensor(ids, device=self.device)
        tensor = tensor if tensor.dim() == 2 else tensor[None]
        if self._input_ids is None:
            return tensor
        known = tensor < len(self._input_ids)
        return torch.where(known, self._input_ids[tensor.clamp_max(len(self._input_ids) - 1)], self.vocab_size)


class LeanRunner:
    """See `Runner`."""

    def __init__(self, weights: LeanLanguageModel, capacity: int, batch: int) -> None:
        self.weights = weights
        self.cache = KVCache(weights.model, capacity, batch)
        self.capacity = capacity

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    @property
    def length(self) -> int:
        (length,) = self.cache.lengths
        return length

    def forward(self, ids: list[int] | Tensor, tree: Tree | None = None) -> Output:
        model = self.weights.model
        hidden = model.forward(self.weights.rows(ids), self.cache, tree)
        if self.cache.batch == 1:
            hidden = hidden[0]
        return Output(model.logits(hidden)[..., : self.weights.vocab_size], hidden)

    def prefill(self, ids: list[int]) -> None:
        self.weights.model.forward(self.weights.rows(ids), self.cache)

    def rollback(self, length: int | list[int]) -> None:
        lengths = [length] if isinstance(length, int) else length
        assert all(0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)), (lengths, self.lengths)
        self.cache.lengths = list(lengths)

    def keep(self, length: int, slots: list[int]) -> None:
        assert all(length <= slot < self.length for slot in slots), (length, slots, self.length)
        self.cache.keep(length, slots)
