"""The Llama forward pass, written once, short enough to read.

Llama, SmolLM2, Mistral, Qwen2, Qwen3 and the draft models trained here are the same block: RMSNorm, rotary attention
with grouped key/value heads, RMSNorm, gated MLP. They differ in what a checkpoint holds (biases, norms of queries and
keys, an output layer of its own), and that is how this file tells them apart. It computes over the checkpoint's own
weights with fused projections and a key/value cache that is written in place, so that a decoding step costs what its
arithmetic costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.device import to_device
from specdemo.models.layers import Linear, RMSNorm, linear
from specdemo.models.tree import Tree


class KVCache:
    """Keys and values of the tokens seen so far, [2, batch, kv_heads, capacity, head_dim] a layer.

    `lengths` is the single truth about what is valid in each row: appending writes behind it, rolling back only moves
    it. Rows may differ in length.
    """

    def __init__(self, model: LeanModel, capacity: int, batch: int = 1) -> None:
        shape = (2, batch, model.kv_heads, capacity, model.head_dim)
        self.layers = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in model.layers]
        cos, sin = rotary_tables(*model.rotary, capacity)
        # Signed as `_rotate` wants it: there a half turn of the dimensions stands for rotate_half.
        sin = sin * torch.tensor([-1.0, 1.0]).repeat_interleave(model.head_dim // 2)
        self.cos, self.sin = (table.to(model.device, model.dtype) for table in (cos, sin))
        self.capacity, self.batch = capacity, batch
        self.lengths = [0] * batch

    def keep(self, length: int, slots: list[int]) -> None:
        """Keep the first `length` tokens and those in `slots` behind them, moved together. Of a cache of one row."""
        end = length + len(slots)
        if slots != list(range(length, end)):
            index = torch.tensor(slots, device=self.layers[0].device)
            for stored in self.layers:
                stored[..., length:end, :] = stored.index_select(3, index)
        self.lengths = [end]


@dataclass(frozen=True)
class Place:
    """Where a pass puts its k new tokens, and what they see.

    slots: the cache slots they take, a range that all rows share or one list for each row, [batch, k].
    end: slots that attention reads. cos, sin: rotations of their positions, [k, head_dim] or [batch, 1, k, head_dim].
    mask: which of those slots each query row may see, [(batch, 1,) groups * k, end]; None where every row sees all.
    """

    slots: slice | Tensor
    end: int
    cos: Tensor
    sin: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class _Layer:
    input_norm: RMSNorm
    qkv: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


class LeanModel:
    """Weights of one Llama-type model, ready to run.

    Args:
        config: a transformers config of the Llama family, or anything with its fields.
        weights: checkpoint tensors by their transformers names. They are taken *out* of this dict one after the
            other, so that fused copies and originals are never all held together. Raises ValueError if a layer has
            weights that this forward does not know: they would be left out without a word.
        device, dtype: where and in what precision to compute; logits are always fp32.
    """

    def __init__(self, config, weights: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.groups = self.heads // self.kv_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.vocab_size, self.width = config.vocab_size, config.hidden_size
        # A sliding window never bites within its own length, so a text of at most that is computed exactly.
        window = getattr(config, "sliding_window", None)
        self.max_length = min(config.max_position_embeddings, window or config.max_position_embeddings)
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        unknown = [name for name in weights if name.startswith("model.layers.") and "rotary_emb" not in name]
        if unknown:
            raise ValueError(f"{unknown[0]} is no weight of a Llama block.")
        self.norm = self._norm(weights, "model.norm.weight")
        self.embedding = self._take(weights, "model.embed_tokens.weight")
        tied = config.tie_word_embeddings or "lm_head.weight" not in weights
        self.head = linear(self.embedding if tied else self._take(weights, "lm_head.weight"))
        self.is_tied = tied
        self.rotary = rotary_frequencies(config, self.head_dim)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache, tree: Tree | None = None) -> Tensor:
        """Append `ids` [batch, k] to the cache; hidden states [batch, k, width] after the last norm.

        With a tree the k tokens are its nodes: each sees the cache and its own ancestors.
        """
        k = ids.shape[1]
        if len(set(cache.lengths)) == 1:
            place = self.place_behind(cache, k, tree)
        else:
            assert tree is None, "trees are for rows of one length"
            place = self.place_ragged(cache, k, to_device(cache.lengths, self.device), max(cache.lengths) + k)
        hidden = self.run(ids, cache, place)
        cache.lengths = [length + k for length in cache.lengths]
        return hidden

    def run(self, ids: Tensor, cache: KVCache, place: Place) -> Tensor:
        """The arithmetic of `forward`: tensors alone, so that a CUDA graph can record it."""
        x = F.embedding(ids, self.embedding)
        for layer, stored in zip(self.layers, cache.layers, strict=True):
            q, new_k, new_v = self._project(layer, x, place)
            _write(stored, place.slots, new_k, new_v)
            keys, values = stored.narrow(3, 0, place.end).unbind(0)
            x = x + layer.out(self._attend(q, keys, values, place.mask))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Output layer: hidden [..., width] -> logits [..., vocab] in fp32."""
        return self.head(hidden).float()

    def place_behind(self, cache: KVCache, k: int, tree: Tree | None = None) -> Place:
        """Behind rows of one length: everything is a slice, nothing is gathered."""
        start = cache.lengths[0]
        new = slice(start, start + k)
        if tree is not None:
            positions = start + tree.depths(self.device)
            mask = F.pad(tree.mask(self.device), (start, 0), value=True)
            return Place(new, new.stop, cache.cos[positions], cache.sin[positions], mask.repeat(self.groups, 1))
        mask = None  # a single query sees everything
        if k > 1:
            mask = torch.ones(k, new.stop, dtype=torch.bool, device=self.device).tril(start).repeat(self.groups, 1)
        return Place(new, new.stop, cache.cos[new], cache.sin[new], mask)

    def place_ragged(self, cache: KVCache, k: int, starts: Tensor, end: int) -> Place:
        """Behind `starts` [batch], which may differ and stay on the device; attention reads `end` slots of each row."""
        slots = starts[:, None] + torch.arange(k, device=self.device)
        mask = torch.arange(end, device=self.device) <= slots[..., None]
        cos, sin = cache.cos[slots][:, None], cache.sin[slots][:, None]
        return Place(slots, end, cos, sin, mask.repeat(1, self.groups, 1)[:, None])

    def _layer(self, weights: dict[str, Tensor], at: str) -> _Layer:
        norm = lambda name: self._norm(weights, f"{at}{name}.weight")  # noqa: E731
        has_qk_norm = f"{at}self_attn.q_norm.weight" in weights
        return _Layer(
            input_norm=norm("input_layernorm"),
            qkv=self._fused(weights, f"{at}self_attn", "q_proj", "k_proj", "v_proj"),
            q_norm=norm("self_attn.q_norm") if has_qk_norm else None,
            k_norm=norm("self_attn.k_norm") if has_qk_norm else None,
            out=self._fused(weights, f"{at}self_attn", "o_proj"),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=self._fused(weights, f"{at}mlp", "gate_proj", "up_proj"),
            down=self._fused(weights, f"{at}mlp", "down_proj"),
        )

    def _fused(self, weights: dict[str, Tensor], part: str, *names: str) -> Linear:
        """One linear layer for all projections of the same input."""
        weight = torch.cat([self._take(weights, f"{part}.{name}.weight") for name in names])
        biases = [f"{part}.{name}.bias" for name in names]
        bias = torch.cat([self._take(weights, name) for name in biases]) if biases[0] in weights else None
        return linear(weight, bias)

    def _norm(self, weights: dict[str, Tensor], name: str) -> RMSNorm:
        return RMSNorm(self._take(weights, name), self.eps)

    def _take(self, weights: dict[str, Tensor], name: str) -> Tensor:
        return weights.pop(name).to(self.device, self.dtype)

    def _project(self, layer: _Layer, x: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [batch, heads, k, head_dim] and keys, and values [batch, kv_heads, k, head_dim]."""
        batch, k, _ = x.shape
        qkv = layer.qkv(layer.input_norm(x)).view(batch, k, -1, self.head_dim).transpose(1, 2)
        rotated, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, new_k = rotated.split([self.heads, self.kv_heads], dim=1)
            rotated = torch.cat((layer.q_norm(q), layer.k_norm(new_k)), dim=1)
        q, new_k = _rotate(rotated, place.cos, place.sin).split([self.heads, self.kv_heads], dim=1)
        return q, new_k, v

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        # Query heads that share a key/value head become extra query rows, so nothing is repeated in memory.
        batch, _, k, _ = q.shape
        rows = q.reshape(batch, self.kv_heads, -1, self.head_dim)
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return mixed.view(batch, self.heads, k, self.head_dim).transpose(1, 2).reshape(batch, k, -1)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin, [batch, heads, k, head_dim]; the sign of rotate_half lies in the table."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def _write(stored: Tensor, slots: slice | Tensor, keys: Tensor, values: Tensor) -> None:
    """Put keys and values [batch, kv_heads, k, head_dim] into their slots."""
    for part, new in zip(stored.unbind(0), (keys, values), strict=True):
        if isinstance(slots, slice):
            part[:, :, slots] = new
        else:
            part.scatter_(2, slots[:, None, :, None].expand_as(new), new)


def rotary_frequencies(config, head_dim: int) -> tuple[Tensor, float]:
    """Angle a position, [head_dim / 2] fp32, and the factor on cos and sin; scaled as the config says.

    The scalings (llama3, yarn, linear) are transformers' own functions: they are arithmetic on a config, and there
    is one right answer.
    """
    rope = config.rope_parameters
    if rope.get("rope_type", "default") == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return rope["rope_theta"] ** -exponents, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)


def rotary_tables(frequencies: Tensor, scale: float, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0 to length - 1, [length, head_dim] fp32 (Su et al. 2021, 2104.09864)."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos() * scale, angles.sin() * scale
