"""Runners of any causal language model of transformers, through its public API."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from transformers import DynamicCache

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.device import is_lost, is_out_of_memory, to_device
from specdemo.models.probe import agree_on_trees
from specdemo.models.runner import require_behind
from specdemo.models.tree import Tree

_NO_LIMIT = 1 << 20  # tokens; what a cache can hold is bounded by memory alone then


class TransformersLanguageModel:
    """See `LanguageModel`."""

    def __init__(self, model, info: ModelInfo, vocab_size: int) -> None:
        self.model, self.info = model, info
        self.device = model.device
        self.vocab_size, self.vocab_ids = vocab_size, None
        config = model.config.get_text_config()
        self.depth = config.num_hidden_layers
        self.max_length = min(context_length(config), rotation_switch(config))
        # transformers renamed the argument; the old name warns and is to go.
        self.cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @cached_property
    def takes_trees(self) -> bool:
        """Tried once. A mask from outside replaces a sliding window's own, and some models (ALiBi) take none at all."""
        text = self.model.config.get_text_config()
        if getattr(text, "sliding_window", None) and "sliding_attention" in getattr(text, "layer_types", ["?"]):
            return False
        try:
            return agree_on_trees(self)
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            if is_out_of_memory(error) or is_lost(error):
                raise
            return False

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(ids)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)[..., : self.vocab_size].float()

    def runner(
        self, capacity: int, batch: int = 1, passes: Sequence[int] = (), taps: Sequence[int] = ()
    ) -> TransformersRunner:
        return TransformersRunner(self, min(capacity, self.max_length), batch, taps)


def context_length(config) -> int:
    """Tokens that a model reads. Families name it differently, and some (ALiBi) know no limit."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    return next((length for name in names if (length := getattr(config, name, None))), _NO_LIMIT)


def rotation_switch(config) -> int:
    """Tokens up to which positions are always rotated alike.

    Longer texts rotate *all* positions otherwise where the config says "longrope" or "dynamic": keys that were cached
    before are wrong then, of rolled back drafts as well as of plain text.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [
        rope,
        *(part for part in rope.values() if isinstance(part, dict)),
    ]  # some families: one for a kind of layer
    kinds = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    return min(
        (kind.get("original_max_position_embeddings") or context_length(config) for kind in kinds), default=_NO_LIMIT
    )


class _Everywhere(dict[torch.device, Tensor]):
    """Indices on each device that asks: a model may be spread over several GPUs."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__()
        self.indices = indices

    def __missing__(self, device: torch.device) -> Tensor:
        self[device] = to_device(self.indices, device)
        return self[device]


class TransformersRunner:
    """See `Runner`. One row: transformers' caches cannot roll rows back by different lengths."""

    def __init__(self, weights: TransformersLanguageModel, capacity: int, batch: int, taps: Sequence[int] = ()) -> None:
        if batch != 1:
            raise UserError(
                f"{weights.info.name} runs through transformers, whose caches hold one text at a time here."
            )
        if weights.depth in taps:
            raise UserError(
                f"{weights.info.name} runs through transformers, which does not tell what leaves its last layer before "
                "the norm: this head cannot draft for it."
            )
        self.weights, self.capacity, self.taps = weights, capacity, tuple(taps)
        self.features = torch.zeros(0, 0, device=weights.device)
        # Without a config every layer keeps all its tokens: a sliding-window layer that drops old ones could not
        # be rolled back (the window itself is still applied, by the model's mask).
        self.cache = DynamicCache()

    @property
    def lengths(self) -> list[int]:
        return [self.length]

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()

    def forward(self, ids: list[int] | Tensor, tree: Tree | None = None) -> Tensor:
        out = self._append(ids, len(ids), tree)
        return out.logits[0, :, : self.weights.vocab_size].float()

    def prefill(self, ids: list[int] | Tensor) -> None:
        self._append(ids, keep=1)

    def rollback(self, length: int | list[int]) -> None:
        surplus = self.length - (length if isinstance(length, int) else length[0])
        if not 0 <= surplus <= self.length:
            raise ValueError(f"a cache of {self.length} tokens cannot be rolled back to {length}")
        if surplus:
            self.cache.crop(-surplus)
            self.features = self.features[: self.length]

    def keep(self, length: int, slots: list[int]) -> None:
        require_behind(length, slots, self.length)
        if slots == list(range(length, length + len(slots))):
            self.rollback(length + len(slots))
            return
        indices = _Everywhere([*range(length), *slots])
        for layer in self.cache.layers:
            index = indices[layer.keys.device]
            layer.keys, layer.values = layer.keys.index_select(2, index), layer.values.index_select(2, index)
        if self.taps:
            self.features = self.features[indices[self.features.device]]

    @torch.inference_mode()
    def _append(self, ids: list[int] | Tensor, keep: int, tree: Tree | None = None):
        tensor = to_device(ids, self.weights.device)[None]
        more = {self.weights.cache_argument: self.cache} | ({} if tree is None else self._as_tree(tree))
        out = self.weights.model(
            tensor, **more, use_cache=True, logits_to_keep=keep, output_hidden_states=bool(self.taps)
        )
        if self.taps:
            # transformers lists what enters each layer, then what leaves the last norm.
            states = [out.hidden_states[min(tap, self.weights.depth)][0].to(tensor.device) for tap in self.taps]
            new = torch.cat(states, dim=-1)
            self.features = torch.cat((self.features, new)) if len(self.features) else new
        return out

    def _as_tree(self, tree: Tree) -> dict[str, Tensor]:
        """A mask of the model's kind, [1, 1, k, length + k]: 0 where a node may look, the least number elsewhere."""
        device, dtype = self.weights.device, self.weights.model.dtype
        seen = torch.nn.functional.pad(tree.mask(device), (self.length, 0), value=True)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
        return {"attention_mask": mask[None, None], "position_ids": (self.length + tree.depths(device))[None]}
