"""One layer of a Llama: RMSNorm, rotary attention with grouped key/value heads, RMSNorm, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.layers import Linear, RMSNorm, linear


@dataclass(frozen=True)
class Heads:
    """How a layer divides its attention: query heads, the key/value heads that they share, and their width."""

    queries: int
    shared: int
    dim: int

    @classmethod
    def of(cls, config) -> Heads:
        queries = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // queries
        return cls(queries, config.num_key_value_heads, dim)

    @property
    def groups(self) -> int:
        """Query heads to a key/value head."""
        return self.queries // self.shared


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


class Weights:
    """A checkpoint's tensors by their transformers names, on their way into a model.

    They are taken *out* of `tensors` one after the other, so that fused copies and originals are never all held
    together, and so that what nobody took can be named. coarse: linear layers may round, see `linear`.
    """

    def __init__(
        self, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype, eps: float, coarse: bool = False
    ) -> None:
        self.tensors, self.device, self.dtype, self.eps, self.coarse = tensors, device, dtype, eps, coarse

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str) -> Tensor:
        return self.tensors.pop(name).to(self.device, self.dtype)

    def norm(self, name: str, width: int) -> RMSNorm:
        """Raises ValueError for a norm of another width: torch would stretch one of width 1 without a word."""
        return RMSNorm(self._vector(f"{name}.weight", width), self.eps)

    def norm_or_none(self, name: str, width: int) -> RMSNorm | None:
        """The norm of that name; None where the checkpoint has none."""
        return self.norm(name, width) if f"{name}.weight" in self else None

    def _vector(self, name: str, width: int) -> Tensor:
        vector = self.take(name)
        if vector.shape != (width,):
            raise ValueError(f"{name} is {tuple(vector.shape)}, where config.json or other weights say ({width},).")
        return vector

    def vocab_ids(self, target_tokens: int) -> Tensor | None:
        """The target's id of every token of a head's own vocabulary, from "d2t"; None where the target's is used.

        Raises ValueError for ids that a target of so many tokens does not have.
        """
        if "d2t" not in self:
            return None
        offsets = self.tensors.pop("d2t").long().to(self.device)
        ids = offsets + torch.arange(len(offsets), device=self.device)
        if int(ids.min()) < 0 or int(ids.max()) >= target_tokens:
            raise ValueError(f"it drafts tokens up to id {int(ids.max())}, and the target has {target_tokens}.")
        return ids

    def linear(self, part: str, *names: str) -> Linear:
        """One linear layer for all projections of the same input."""
        weights = [self.take(f"{part}{name}.weight") for name in names]
        bias = None
        if f"{part}{names[0]}.bias" in self:
            pairs = zip(names, weights, strict=True)
            bias = torch.cat([self._vector(f"{part}{name}.bias", len(weight)) for name, weight in pairs])
        fused = torch.cat(weights)
        del weights
        return linear(fused, bias, self.coarse)


class Block:
    """Weights of one layer. Its two halves give what is to be added to the residual stream; adding is the caller's, and
    so is `input_norm` in front of the first half."""

    def __init__(self, weights: Weights, at: str, heads: Heads, width: int, normed: bool = True) -> None:
        self.heads = heads
        self.input_norm = weights.norm(f"{at}input_layernorm", width) if normed else None
        self.mlp_norm = weights.norm(f"{at}post_attention_layernorm", width)
        self._qkv = weights.linear(f"{at}self_attn.", "q_proj", "k_proj", "v_proj")
        self._q_norm = weights.norm_or_none(f"{at}self_attn.q_norm", heads.dim)
        self._k_norm = weights.norm_or_none(f"{at}self_attn.k_norm", heads.dim)
        self._out = weights.linear(f"{at}self_attn.", "o_proj")
        self._gate_up = weights.linear(f"{at}mlp.", "gate_proj", "up_proj")
        self._down = weights.linear(f"{at}mlp.", "down_proj")

    def attend(self, x: Tensor, stored: Tensor, place: Place) -> Tensor:
        """Attention from x [batch, k, in], normed already, over the layer's cache, to which x is added."""
        q, new_k, new_v = self._project(x, place)
        _write(stored, place.slots, new_k, new_v)
        keys, values = stored.narrow(3, 0, place.end).unbind(0)
        # Query heads that share a key/value head become extra query rows, so nothing is repeated in memory.
        batch, _, k, dim = q.shape
        rows = q.reshape(batch, self.heads.shared, -1, dim)
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=place.mask)
        return self._out(mixed.view(batch, -1, k, dim).transpose(1, 2).reshape(batch, k, -1))

    def feed(self, x: Tensor) -> Tensor:
        """The gated MLP of x [batch, k, width], its norm included."""
        gate, up = self._gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up))

    def _project(self, x: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [batch, heads, k, head_dim] and keys, and values [batch, kv_heads, k, head_dim]."""
        heads, (batch, k, _) = self.heads, x.shape
        qkv = self._qkv(x).view(batch, k, -1, heads.dim).transpose(1, 2)
        rotated, v = qkv.split([heads.queries + heads.shared, heads.shared], dim=1)
        if self._q_norm is not None and self._k_norm is not None:
            q, new_k = rotated.split([heads.queries, heads.shared], dim=1)
            rotated = torch.cat((self._q_norm(q), self._k_norm(new_k)), dim=1)
        q, new_k = _rotate(rotated, place.cos, place.sin).split([heads.queries, heads.shared], dim=1)
        return q, new_k, v


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
