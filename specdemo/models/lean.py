"""The Llama forward pass, written once, short enough to read.

Llama, SmolLM2 and the draft models trained here are the same block: RMSNorm, rotary attention with grouped
key/value heads, RMSNorm, gated MLP. This file computes it over a checkpoint's own weights with fused projections
and a key/value cache that is written in place, so that a decoding step costs what its arithmetic costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.packing import Linear, linear


class KVCache:
    """Keys and values of the tokens seen so far, [batch, kv_heads, capacity, head_dim] a layer.

    `length` is the single truth about what is valid: appending writes behind it, rolling back only moves it.
    """

    def __init__(self, model: LeanModel, capacity: int, batch: int = 1) -> None:
        shape = (batch, model.kv_heads, capacity, model.head_dim)
        self.keys = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in model.layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.capacity = capacity
        self.length = 0

    def rollback(self, length: int) -> None:
        """Forget every token from position `length` on."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class LeanModel:
    """Weights of one Llama-type model, ready to run.

    Args:
        config: a transformers `LlamaConfig` (or anything with its fields).
        weights: checkpoint tensors by their transformers names.
        device, dtype: where and in what precision to compute; logits are always fp32.
    """

    def __init__(self, config, weights: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.vocab_size = config.vocab_size
        self.max_length = config.max_position_embeddings

        def take(name: str) -> Tensor:
            return weights[name].to(self.device, dtype)

        def fused(layer: str, *names: str) -> Linear:
            biases = [f"{layer}.{name}.bias" for name in names]
            has_bias = biases[0] in weights
            return linear(
                torch.cat([take(f"{layer}.{name}.weight") for name in names]),
                torch.cat([take(name) for name in biases]) if has_bias else None,
            )

        self.embedding = take("model.embed_tokens.weight")
        self.layers = [
            _Layer(
                input_norm=take(f"{at}.input_layernorm.weight"),
                qkv=fused(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
                out=fused(f"{at}.self_attn", "o_proj"),
                mlp_norm=take(f"{at}.post_attention_layernorm.weight"),
                gate_up=fused(f"{at}.mlp", "gate_proj", "up_proj"),
                down=fused(f"{at}.mlp", "down_proj"),
            )
            for at in (f"model.layers.{i}" for i in range(config.num_hidden_layers))
        ]
        self.norm = take("model.norm.weight")
        self.head = linear(self.embedding if config.tie_word_embeddings else take("lm_head.weight"))
        self.cos, self.sin = rotary_tables(config, self.head_dim, self.device, dtype)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Append `ids` [batch, k] to the cache; hidden states [batch, k, width] after the last norm."""
        k = ids.shape[1]
        start, end = cache.length, cache.length + k
        cos, sin = self.cos[start:end], self.sin[start:end]
        mask = self._mask(k, start)
        x = F.embedding(ids, self.embedding)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            q, new_k, new_v = self._project(layer, x, cos, sin)
            keys[:, :, start:end] = new_k
            values[:, :, start:end] = new_v
            x = x + layer.out(self._attend(q, keys[:, :, :end], values[:, :, :end], mask))
            gate, up = layer.gate_up(self._rms(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        cache.length = end
        return self._rms(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Output layer: hidden [..., width] -> logits [..., vocab] in fp32."""
        return self.head(hidden).float()

    def _project(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, k, _ = x.shape
        qkv = layer.qkv(self._rms(x, layer.input_norm)).view(batch, k, -1, self.head_dim).transpose(1, 2)
        rotated, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        rotated = rotated * cos + rotate_half(rotated) * sin
        q, new_k = rotated.split([self.heads, self.kv_heads], dim=1)
        return q, new_k, v

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        # Query heads that share a key/value head become extra query rows, so nothing is repeated in memory.
        batch, _, k, _ = q.shape
        rows = q.reshape(batch, self.kv_heads, -1, self.head_dim)
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return mixed.view(batch, self.heads, k, self.head_dim).transpose(1, 2).reshape(batch, k, -1)

    def _mask(self, k: int, start: int) -> Tensor | None:
        """Which cache slots each query row may see, [groups * k, start + k]; None where every row sees all."""
        if k == 1:
            return None
        causal = torch.ones(k, start + k, dtype=torch.bool, device=self.device).tril(start)
        return causal.repeat(self.heads // self.kv_heads, 1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def rotary_tables(config, head_dim: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, [max_length, head_dim] (Su et al. 2021, 2104.09864)."""
    theta = config.rope_parameters["rope_theta"]
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(config.max_position_embeddings, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
