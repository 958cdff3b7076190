"""What decoding needs of a model: weights that are shared, and runners that each own a cache."""

from __future__ import annotations

import inspect
from typing import Protocol

import torch
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.lean import KVCache, LeanModel

PREFILL_CHUNK = 256
"""Prompt tokens a pass: short enough that Stop is felt at once, long enough for full speed."""


def chunks(ids: list[int]) -> list[list[int]]:
    """A prompt in the pieces in which it is read."""
    return [ids[at : at + PREFILL_CHUNK] for at in range(0, len(ids), PREFILL_CHUNK)]


class Runner(Protocol):
    """A model with one key/value cache. The cache's length is the state; nothing else changes between calls."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""
        ...

    def forward(self, ids: list[int]) -> Tensor:
        """Append k tokens; logits [k, vocab] fp32, row i predicting the token behind ids[i]."""
        ...

    def prefill(self, ids: list[int]) -> None:
        """Append tokens whose predictions nobody needs."""
        ...

    def rollback(self, length: int) -> None:
        """Forget every token from position `length` on."""
        ...


class LanguageModel(Protocol):
    """Weights, loaded once and shared by every runner made from them.

    vocab_size counts the tokens that can be predicted: padding rows of the embedding are cut off. vocab_ids, where
    a model predicts a reduced vocabulary, gives the target's id of each prediction, [vocab_size].
    """

    info: ModelInfo
    device: torch.device
    vocab_size: int
    vocab_ids: Tensor | None
    max_length: int

    def runner(self, capacity: int) -> Runner:
        """A fresh runner for up to `capacity` tokens (never more than max_length)."""
        ...


class LeanLanguageModel:
    """Llama-type weights run by the lean forward."""

    def __init__(self, model: LeanModel, info: ModelInfo, vocab_size: int, vocab_ids: Tensor | None = None) -> None:
        self.model, self.info = model, info
        self.device, self.max_length = model.device, model.max_length
        self.vocab_size, self.vocab_ids = vocab_size, vocab_ids
        self._input_ids: Tensor | None = None
        if vocab_ids is not None:
            # Full id -> row of the reduced embedding; its last row stands for every token outside the vocabulary.
            self._input_ids = torch.full((int(vocab_ids.max()) + 1,), vocab_size, device=self.device)
            self._input_ids[vocab_ids] = torch.arange(vocab_size, device=self.device)

    def runner(self, capacity: int) -> LeanRunner:
        return LeanRunner(self, min(capacity, self.max_length))

    def rows(self, ids: list[int]) -> Tensor:
        """Embedding rows [1, k] of the target's ids."""
        tensor = torch.tensor([ids], device=self.device)
        if self._input_ids is None:
            return tensor
        known = tensor < len(self._input_ids)
        return torch.where(known, self._input_ids[tensor.clamp_max(len(self._input_ids) - 1)], self.vocab_size)


class LeanRunner:
    """See `Runner`."""

    def __init__(self, weights: LeanLanguageModel, capacity: int) -> None:
        self.weights = weights
        self.cache = KVCache(weights.model, capacity)

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def capacity(self) -> int:
        return self.cache.capacity

    def forward(self, ids: list[int]) -> Tensor:
        hidden = self.weights.model.forward(self.weights.rows(ids), self.cache)
        return self.weights.model.logits(hidden[0])[:, : self.weights.vocab_size]

    def prefill(self, ids: list[int]) -> None:
        self.weights.model.forward(self.weights.rows(ids), self.cache)

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)


class TransformersLanguageModel:
    """Any causal language model of transformers, through its public API."""

    def __init__(self, model, info: ModelInfo, vocab_size: int) -> None:
        self.model, self.info = model, info
        self.device = model.device
        self.vocab_size, self.vocab_ids = vocab_size, None
        self.max_length = model.config.get_text_config().max_position_embeddings
        # transformers renamed the argument; the old name warns and is to go.
        self.cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def runner(self, capacity: int) -> TransformersRunner:
        return TransformersRunner(self, min(capacity, self.max_length))


class TransformersRunner:
    """See `Runner`."""

    def __init__(self, weights: TransformersLanguageModel, capacity: int) -> None:
        from transformers import DynamicCache

        self.weights, self.capacity = weights, capacity
        # Without a config every layer keeps all its tokens: a sliding-window layer that drops old ones could not
        # be rolled back (the window itself is still applied, by the model's mask).
        self.cache = DynamicCache()

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()

    def forward(self, ids: list[int]) -> Tensor:
        return self._append(ids, keep=len(ids))[0, :, : self.weights.vocab_size].float()

    def prefill(self, ids: list[int]) -> None:
        self._append(ids, keep=1)

    def rollback(self, length: int) -> None:
        surplus = self.length - length
        assert 0 <= surplus <= self.length, (length, self.length)
        if surplus:
            self.cache.crop(-surplus)

    @torch.inference_mode()
    def _append(self, ids: list[int], keep: int) -> Tensor:
        tensor = torch.tensor([ids], device=self.weights.device)
        cache = {self.weights.cache_argument: self.cache}
        return self.weights.model(tensor, **cache, use_cache=True, logits_to_keep=keep).logits
