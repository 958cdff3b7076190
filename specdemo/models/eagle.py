"""EAGLE heads: one layer that continues a target's hidden states (Li et al. 2024, 2401.15077; 2025, 2503.01840).

Index t of a head's text is the state behind token t together with token t + 1, and predicts token t + 2. Behind the
text, where the target has not been yet, the head's own output stands in for the state. Two layouts are published, and
what a checkpoint holds tells which it is:

- EAGLE and EAGLE-2: the state is what leaves the target's last norm; `fc` joins it with the token's embedding, the
  layer continues it, and the target's own output layer reads it.
- EAGLE-3: `fc` joins states of several depths of the target; the layer reads the result beside the embedding; norm
  and output layer are the head's own, over a vocabulary of its own (`d2t`: draft id -> target id minus draft id).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.block import Block, Heads, Weights, rotary_frequencies
from specdemo.models.cache import KVCache
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import Tree


class EagleHead:
    """A head over one target, ready to run. States are [k, width], ids [k] are the target's.

    Args:
        config: fields of a Llama config for the one layer; "taps" names the target's depths that it reads, where they
            are not those of the published layouts.
        tensors: the checkpoint's, emptied on the way. Raises KeyError where one is missing, ValueError where one is
            left over.
        target: the model whose states it continues.
    """

    def __init__(self, config, tensors: dict[str, Tensor], target: LanguageModel, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.depth, self.width = target.device, dtype, 1, config.hidden_size
        self.heads, self.rotary = Heads.of(config), rotary_frequencies(config, Heads.of(config).dim)
        self.joins_depths = "midlayer.hidden_norm.weight" in tensors
        weights = Weights(tensors, self.device, dtype, config.rms_norm_eps)
        self._target = target
        self._embedding = weights.take("embed_tokens.weight") if "embed_tokens.weight" in weights else None
        self.taps = tuple(getattr(config, "taps", None) or self._published_taps(target.depth))
        self.vocab_ids: Tensor | None = None
        self._fuse: Callable[[Tensor], Tensor] = weights.linear("", "fc")
        if self.joins_depths:
            self._read_own_vocabulary(weights)
            self._hidden_norm = weights.norm("midlayer.hidden_norm")
            self._block = Block(weights, "midlayer.", self.heads)
            scales = weights.take("feature_norms") if "feature_norms" in weights else None
            self._feature_norms, self._eps = scales, config.rms_norm_eps
        else:
            normed = "layers.0.input_layernorm.weight" in weights  # the published ones have none in their first layer
            self._block = Block(weights, "layers.0.", self.heads, normed)
        left = [name for name in tensors if "rotary_emb" not in name]
        if left:
            raise ValueError(f"{left[0]} is no weight of an EAGLE head.")

    def _published_taps(self, depth: int) -> tuple[int, ...]:
        return (2, depth // 2, depth - 3) if self.joins_depths else (depth + 1,)

    def _read_own_vocabulary(self, weights: Weights) -> None:
        self._norm, self._head = weights.norm("norm"), weights.linear("", "lm_head")
        if "d2t" in weights.tensors:
            offsets = weights.tensors.pop("d2t").long().to(self.device)
            self.vocab_ids = offsets + torch.arange(len(offsets), device=self.device)
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
    def forward(self, states: Tensor, ids: Tensor, cache: KVCache, tree: Tree | None = None) -> Tensor:
        """Append k tokens to the cache; the states behind them. With a tree they are its last nodes."""
        k = len(ids)
        place, embedded, states = cache.place(k, tree), self.embed(ids)[None], states[None]
        if self.joins_depths:
            x = torch.cat((self._block.input_norm(embedded), self._hidden_norm(states)), dim=-1)
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
        return self._head(self._norm(states)).float() if self.joins_depths else self._target.predict(states)

    def target_ids(self, ids: Tensor) -> Tensor:
        """The target's ids of the head's own, any shape."""
        return ids if self.vocab_ids is None else self.vocab_ids[ids]
