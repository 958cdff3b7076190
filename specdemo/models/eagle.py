"""EAGLE heads: one layer that continues a target's hidden states (Li et al. 2024, 2401.15077; 2025, 2503.01840).

Index t of a head's text is the state behind token t together with token t + 1, and predicts token t + 2. Behind the
text, where the target has not been yet, the head's own output stands in for the state. Two layouts are published, and
what a checkpoint holds tells which it is:

- EAGLE and EAGLE-2: the state is what leaves the target's last norm; `fc` joins it with the token's embedding, the
  layer continues it, and the target's own output layer reads it (unless a copy is in the checkpoint).
- EAGLE-3: `fc` joins states of several depths of the target; the layer reads the result beside the embedding; norm
  and output layer are the head's own, over a vocabulary of its own (`d2t`: draft id -> target id minus draft id).
  With "norm_before_residual" the layer adds to the normed state, not to the state itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.block import Block, Heads, Place, Weights, rotary_frequencies
from specdemo.models.cache import KVCache
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import Tree


def published_taps(joins_depths: bool, depth: int) -> tuple[int, ...]:
    """Depths that a published head reads of a target of so many layers: EAGLE-3 joins several."""
    return (2, depth // 2, depth - 3) if joins_depths else (depth + 1,)


class EagleHead:
    """A head over one target, ready to run. States are [k, width], ids [k] are the target's.

    Args:
        config: fields of a Llama config for the one layer; "taps" names the target's depths that it reads, where they
            are not those of the published layouts.
        tensors: the checkpoint's, emptied on the way. Raises KeyError where one is missing, ValueError where one is
            left over or the target has not the depths or the tokens that the head was made for.
        target: the model whose states it continues.
    """

    info: ModelInfo | None = None
    """Where it came from, if from a folder."""

    def __init__(self, config, tensors: dict[str, Tensor], target: LanguageModel, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.depth, self.width = target.device, dtype, 1, config.hidden_size
        self.heads, self.rotary = Heads.of(config), rotary_frequencies(config, Heads.of(config).dim)
        self.joins_depths = "midlayer.hidden_norm.weight" in tensors
        weights = Weights(tensors, self.device, dtype, config.rms_norm_eps, coarse=True)
        self._target = target
        self._embedding = weights.take("embed_tokens.weight") if "embed_tokens.weight" in weights else None
        self.taps = tuple(getattr(config, "taps", None) or published_taps(self.joins_depths, target.depth))
        # A cache keeps each depth once, so of two that coincide one would be missing.
        if len(set(self.taps)) < len(self.taps) or not all(0 <= tap <= target.depth + 1 for tap in self.taps):
            raise ValueError(f"it reads states at depths {self.taps}, and the target has {target.depth} layers.")
        self._fuse: Callable[[Tensor], Tensor] = weights.linear("", "fc")
        self._read_vocabulary(weights)
        if self.joins_depths:
            self._norm = weights.norm("norm", self.width)
            self._hidden_norm = weights.norm("midlayer.hidden_norm", self.width)
            self._norm_first = bool(getattr(config, "norm_before_residual", False))
            self._block = Block(weights, "midlayer.", self.heads, self.width)
            scales = weights.take("feature_norms") if "feature_norms" in weights else None
            self._feature_norms, self._eps = scales, config.rms_norm_eps
        else:
            normed = "layers.0.input_layernorm.weight" in weights  # the published ones have none in their first layer
            self._block = Block(weights, "layers.0.", self.heads, self.width, normed)
        left = [name for name in tensors if "rotary_emb" not in name]
        if left:
            raise ValueError(f"{left[0]} is no weight of an EAGLE head.")

    def _read_vocabulary(self, weights: Weights) -> None:
        known = self._target.vocab_size
        if self._embedding is not None and len(self._embedding) < known:
            raise ValueError(f"it embeds {len(self._embedding)} tokens, and the target has {known}.")
        self._head = weights.linear("", "lm_head") if "lm_head.weight" in weights else self._target.predict
        self.vocab_ids = weights.vocab_ids(known)
        weights.tensors.pop("t2d", None)  # which target tokens the draft knows: d2t says it too

    def embed(self, ids: Tensor) -> Tensor:
        if self._embedding is None:
            return self._target.embed(ids).to(self.dtype)
        return F.embedding(ids, self._embedding)

    def states(self, features: Tensor) -> Tensor:
        """The target's features [k, taps * width] as states to continue."""
        if not self.joins_depths:
            return features.to(self.dtype)
        if self._feature_norms is not None:
            x = features.unflatten(-1, self._feature_norms.shape)
            features = (F.rms_norm(x, x.shape[-1:], eps=self._eps) * self._feature_norms).flatten(-2)
        return self._fuse(features.to(self.dtype))

    @torch.inference_mode()
    def forward(
        self, states: Tensor, ids: Tensor, cache: KVCache, tree: Tree | None = None, place: Place | None = None
    ) -> Tensor:
        """Append k tokens to the cache; the states behind them. With a tree they are its last nodes; a place says where
        they stand if the cache is not to find out."""
        k = len(ids)
        place, embedded, states = place or cache.place(k, tree), self.embed(ids)[None], states[None]
        if self.joins_depths:
            normed = self._hidden_norm(states)
            x = torch.cat((self._block.input_norm(embedded), normed), dim=-1)
            states = normed if self._norm_first else states
        else:
            x = states = self._fuse(torch.cat((embedded, states), dim=-1))
            if self._block.input_norm is not None:
                x = self._block.input_norm(states)
        states = states + self._block.attend(x, cache.layers[0], place)
        states = states + self._block.feed(states)
        cache.lengths = [cache.lengths[0] + k]
        return states[0]

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Logits [k, its vocabulary] fp32 of the tokens behind states [k, width]."""
        logits = self._head(self._norm(states) if self.joins_depths else states).float()
        # Rows of padding stand for no token, and an id that the target lacks could not be verified.
        return logits if self.vocab_ids is not None else logits[..., : self._target.vocab_size]

    def target_ids(self, ids: Tensor) -> Tensor:
        """The target's ids of the head's own, any shape."""
        return ids if self.vocab_ids is None else self.vocab_ids[ids]
