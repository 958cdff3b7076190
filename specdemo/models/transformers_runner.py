"""Runners of any causal language model of transformers, through its public API."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.device import to_device
from specdemo.models.runner import Output
from specdemo.models.tree import Tree

_NO_LIMIT = 1 << 20  # tokens; what a cache can hold is bounded by memory alone then


class TransformersLanguageModel:
    """See `LanguageModel`. `hidden` asks every pass for hidden states too, which costs memory."""

    def __init__(self, model, info: ModelInfo, vocab_size: int, hidden: bool = False) -> None:
        self.model, self.info, self.hidden = model, info, hidden
        self.device = model.device
        self.vocab_size, self.vocab_ids = vocab_size, None
        self.max_length = _context_length(model.config.get_text_config())
        # transformers renamed the argument; the old name warns and is to go.
        self.cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def runner(self, capacity: int, batch: int = 1, passes: Sequence[int] = ()) -> TransformersRunner:
        return TransformersRunner(self, min(capacity, self.max_length), batch)


def _context_length(config) -> int:
    """Tokens that a model reads. Families name it differently, and some (ALiBi) know no limit."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    return next((length for name in names if (length := getattr(config, name, None))), _NO_LIMIT)


class TransformersRunner:
    """See `Runner`. One row: transformers' caches cannot roll rows back by different lengths."""

    def __init__(self, weights: TransformersLanguageModel, capacity: int, batch: int) -> None:
        if batch != 1:
            raise UserError(
                f"{weights.info.name} runs through transformers, whose caches hold one text at a time here."
            )
        self.weights, self.capacity = weights, capacity
        # Without a config every layer keeps all its tokens: a sliding-window layer that drops old ones could not
        # be rolled back (the window itself is still applied, by the model's mask).
        self.cache = DynamicCache()

    @property
    def lengths(self) -> list[int]:
        return [self.length]

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()

    def forward(self, ids: list[int] | Tensor, tree: Tree | None = None) -> Output:
        out = self._append(ids, len(ids), tree)
        hidden = out.hidden_states[-1][0] if self.weights.hidden else None
        return Output(out.logits[0, :, : self.weights.vocab_size].float(), hidden)

    def prefill(self, ids: list[int] | Tensor) -> None:
        self._append(ids, keep=1)

    def rollback(self, length: int | list[int]) -> None:
        surplus = self.length - (length if isinstance(length, int) else length[0])
        assert 0 <= surplus <= self.length, (length, self.length)
        if surplus:
            self.cache.crop(-surplus)

    def keep(self, length: int, slots: list[int]) -> None:
        if slots == list(range(length, length + len(slots))):
            self.rollback(length + len(slots))
            return
        index = torch.tensor([*range(length), *slots], device=self.weights.device)
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys.index_select(2, index), layer.values.index_select(2, index)

    @torch.inference_mode()
    def _append(self, ids: list[int] | Tensor, keep: int, tree: Tree | None = None):
        tensor = to_device(ids, self.weights.device)[None]
        more = {self.weights.cache_argument: self.cache} | ({} if tree is None else self._as_tree(tree))
        return self.weights.model(
            tensor, **more, use_cache=True, logits_to_keep=keep, output_hidden_states=self.weights.hidden
        )

    def _as_tree(self, tree: Tree) -> dict[str, Tensor]:
        """A mask of the model's kind, [1, 1, k, length + k]: 0 where a node may look, the least number elsewhere."""
        device, dtype = self.weights.device, self.weights.model.dtype
        seen = torch.nn.functional.pad(tree.mask(device), (self.length, 0), value=True)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
        return {"attention_mask": mask[None, None], "position_ids": (self.length + tree.depths(device))[None]}
