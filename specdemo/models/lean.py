"""The Llama forward pass, written once, short enough to read.

Llama, SmolLM2, Mistral, Qwen2, Qwen3 and the draft models trained here are the same stack of blocks. They differ in
what a checkpoint holds (biases, norms of queries and keys, an output layer of its own), and that is how a block tells
them apart. It computes over the checkpoint's own weights with fused projections and a key/value cache that is written
in place, so that a decoding step costs what its arithmetic costs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.block import Block, Heads, Weights, rotary_frequencies
from specdemo.models.cache import KVCache, Place
from specdemo.models.layers import linear
from specdemo.models.tree import Tree

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROPES = ("default", "linear", "llama3", "yarn")


def is_lean(config) -> bool:
    """Whether the lean forward computes the architecture of a transformers config."""
    if getattr(config, "quantization_config", None):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    return config.model_type in _FAMILIES and rope.get("rope_type") in _ROPES and config.hidden_act == "silu"


class LeanModel:
    """Weights of one Llama-type model, ready to run.

    Args:
        config: a transformers config of the Llama family, or anything with its fields.
        tensors: checkpoint tensors by their transformers names, emptied on the way. Raises ValueError if a layer has
            weights that this forward does not know: they would be left out without a word.
        device, dtype: where and in what precision to compute; logits are always fp32.
    """

    def __init__(self, config, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.heads = Heads.of(config)
        self.vocab_size, self.width, self.depth = config.vocab_size, config.hidden_size, config.num_hidden_layers
        # A sliding window never bites within its own length, so a text of at most that is computed exactly.
        window = getattr(config, "sliding_window", None)
        self.max_length = min(config.max_position_embeddings, window or config.max_position_embeddings)
        weights = Weights(tensors, self.device, dtype, config.rms_norm_eps)
        self.blocks = [Block(weights, f"model.layers.{i}.", self.heads, self.width) for i in range(self.depth)]
        unknown = [name for name in tensors if name.startswith("model.layers.") and "rotary_emb" not in name]
        if unknown:
            raise ValueError(f"{unknown[0]} is no weight of a Llama block.")
        self.norm = weights.norm("model.norm", self.width)
        self.embedding = weights.take("model.embed_tokens.weight")
        self.is_tied = config.tie_word_embeddings or "lm_head.weight" not in weights
        self._output = self.embedding if self.is_tied else weights.take("lm_head.weight")
        shape = (self.vocab_size, self.width)
        if self.embedding.shape != shape or self._output.shape != shape:
            found = " and ".join(str(tuple(part.shape)) for part in (self.embedding, self._output))
            raise ValueError(f"embedding and output layer are {found}, where its config.json says {shape}.")
        self.head = linear(self._output)
        self.rotary = rotary_frequencies(config, self.heads.dim)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache, tree: Tree | None = None) -> Tensor:
        """Append `ids` [batch, k] to the cache; hidden states [batch, k, width] after the last norm.

        With a tree the k tokens are its nodes: each sees the cache and its own ancestors.
        """
        hidden = self.run(ids, cache, cache.place(ids.shape[1], tree))
        cache.lengths = [length + ids.shape[1] for length in cache.lengths]
        return hidden

    def run(self, ids: Tensor, cache: KVCache, place: Place) -> Tensor:
        """The arithmetic of `forward`: tensors alone, so that a CUDA graph can record it."""
        x = self.run_blocks(F.embedding(ids, self.embedding), cache, place, self.depth)
        cache.tap(self.depth, x, place.slots)
        x = self.norm(x)
        cache.tap(self.depth + 1, x, place.slots)
        return x

    def run_blocks(self, x: Tensor, cache: KVCache, place: Place, depth: int) -> Tensor:
        """The residual stream [batch, k, width] behind the first `depth` blocks."""
        for i, (block, stored) in enumerate(zip(self.blocks[:depth], cache.layers, strict=False)):
            cache.tap(i, x, place.slots)
            x = x + block.attend(block.input_norm(x), stored, place)
            x = x + block.feed(x)
        return x

    def head_rows(self, ids: Tensor) -> Tensor:
        """The output layer's rows of tokens [..., k], as [..., k, width]."""
        return F.embedding(ids, self._output)

    def logits(self, hidden: Tensor) -> Tensor:
        """Output layer: hidden [..., width] -> logits [..., vocab] in fp32."""
        return self.head(hidden).float()
