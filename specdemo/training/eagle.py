"""An EAGLE head while it learns: one layer that continues the target's own hidden states.

The layout is EAGLE-3's (Li et al. 2025, 2503.01840), under the names of its published checkpoints: the target's states
at several depths are fused into one vector, the layer reads it beside the embedding of the token that came next, and
what comes out stands in for the states of the next position, which the target has not computed. Index t of a row holds
the states behind token t and the embedding of token t + 1, and predicts token t + 2.

A head that is trained on the target's states alone falls apart from its second step on, where it reads its own. So it
is trained as it will be used (training-time test): depth j predicts from states that are j steps of its own away.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from specdemo.models.block import rotary_frequencies, rotary_tables
from specdemo.models.vocabulary import draft_ids_of, offsets_of
from specdemo.training.dataset import Batch
from specdemo.training.student import GatedMLP, RMSNorm, rotate_half
from specdemo.training.target import Target

_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
)
"""What config.json says of the layer."""


class Attention(nn.Module):
    """Attention over the states of the target and, where these end, over the head's own."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        inside, shared = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(2 * width, inside, bias=False)
        self.k_proj = nn.Linear(2 * width, shared, bias=False)
        self.v_proj = nn.Linear(2 * width, shared, bias=False)
        self.o_proj = nn.Linear(inside, width, bias=False)
        self.groups = inside // shared

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """x [batch, length, 2 width]; `past` holds keys and values of the shallower depths, this depth's are added.

        At depth j a position sees depth 0 up to j positions before itself, then one position of each later depth:
        the text that the target has read, and the draft behind it.
        """
        split = lambda y: y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        past.append(tuple(y.repeat_interleave(self.groups, dim=1) for y in (k, v)))
        (keys, values), *later = past
        if not later:
            mixed = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        else:
            depth, length = len(later), x.shape[1]
            scores = q @ keys.transpose(2, 3)
            seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-depth)
            scores = scores.masked_fill(~seen, float("-inf"))
            # Depth i stands depth - i positions back.
            own = [(back(k, depth - i), back(v, depth - i)) for i, (k, v) in enumerate(later, 1)]
            along = torch.stack([(q * k).sum(-1) for k, _ in own], dim=-1)
            weights = (torch.cat((scores, along), dim=-1) * self.head_dim**-0.5).softmax(-1)
            mixed = weights[..., :length] @ values
            mixed = mixed + sum(weights[..., length + i, None] * v for i, (_, v) in enumerate(own))
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def back(x: Tensor, by: int) -> Tensor:
    """x [..., length, width] with every position holding what stood `by` positions before it, zeros at the start."""
    return F.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :]


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = GatedMLP(config)

    def forward(self, hidden: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, past: list) -> Tensor:
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(x, cos, sin, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle(nn.Module):
    """The trainable head. `vocab_ids` int64 [vocab] names the target's token of every draft token.

    The embedding is the target's, neither trained nor exported. `feature_norms` bring the depths to one scale: a
    residual stream grows from layer to layer, and some of its channels are a thousand times larger than others.
    """

    def __init__(self, config: LlamaConfig, vocab_ids: Tensor, embedding: Tensor, taps: tuple[int, ...]) -> None:
        super().__init__()
        self.config, self.taps = config, taps
        width = config.hidden_size
        self.feature_norms = nn.Parameter(torch.ones(len(taps), width))
        self.fc = nn.Linear(len(taps) * width, width, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, len(vocab_ids), bias=False)
        cos, sin = rotary_tables(*rotary_frequencies(config, config.head_dim), config.max_position_embeddings)
        buffers = {"cos": cos, "sin": sin, "embedding": embedding, "vocab_ids": vocab_ids.long()}
        buffers["draft_ids"] = draft_ids_of(buffers["vocab_ids"], len(embedding))
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def head(self) -> Tensor:
        """The output layer [vocab, width]."""
        return self.lm_head.weight

    @property
    def longest(self) -> int:
        """Tokens that a row may have."""
        return len(self.cos)

    @property
    def inner(self) -> list[nn.Parameter]:
        """The matrices inside, for the optimiser that is meant for them."""
        return [self.fc.weight, *(p for p in self.midlayer.parameters() if p.dim() == 2)]

    @property
    def description(self) -> dict:
        shape = self.config.to_dict()
        return {"head": "eagle", "taps": list(self.taps)} | {name: shape[name] for name in _SHAPE}

    def exported(self) -> dict[str, Tensor]:
        return dict(self.named_parameters()) | {"d2t": offsets_of(self.vocab_ids)}

    def fuse(self, features: Tensor) -> Tensor:
        """The target's states [..., taps * width] as one vector [..., width]."""
        x = features.unflatten(-1, self.feature_norms.shape)
        x = F.rms_norm(x.float(), x.shape[-1:], eps=self.config.rms_norm_eps) * self.feature_norms
        return self.fc(x.flatten(-2))

    def states(self, batch: Batch, depths: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """See `Learner`: depth j predicts from states of which the last j are the head's own."""
        assert batch.features is not None
        assert not batch.where[:, 0].any(), "the head predicts from the third token on"
        hidden = self.fuse(batch.features[:, :-2]).to(dtype)
        embedded = F.embedding(batch.ids[:, 1:-1], self.embedding).to(dtype)
        length, where = hidden.shape[1], batch.where[:, 1:]
        cos, sin = self.cos[:length].to(dtype), self.sin[:length].to(dtype)
        past: list = []
        found = []
        lines = torch.arange(int(where.sum()), device=where.device)
        for depth in range(depths):
            if depth:
                hidden = back(hidden, 1)
            hidden = self.midlayer(hidden, embedded, cos, sin, past)
            found.append((self.norm(hidden)[where], lines))
        return found


def make_config(target_config, mlp: int) -> LlamaConfig:
    """A head's configuration: the target's, one layer, an MLP of width `mlp`."""
    config = LlamaConfig(**target_config.to_dict())
    config.num_hidden_layers, config.intermediate_size = 1, mlp
    return config


def initialise(head: Eagle, target: Target, features: Tensor) -> None:
    """Begin as the target's last layer, read again: many steps nearer than noise.

    features [n, taps * width], a sample: the head's first vector is the last depth's state, every channel of every
    depth being brought to the same size before `fc`.
    """
    weights, width = target.weights, head.config.hidden_size
    last = f"model.layers.{target.config.num_hidden_layers - 1}."
    get = lambda name: weights[last + name].float()  # noqa: E731
    x = features.float().unflatten(-1, head.feature_norms.shape)
    size = x[..., -1, :].pow(2).mean().sqrt()  # of the stream that the layer's weights are made for
    x = F.rms_norm(x, x.shape[-1:], eps=1e-5)
    spread = x.pow(2).mean(0).sqrt().clamp_min(1e-3)
    with torch.no_grad():
        head.feature_norms.copy_(1 / spread)
        head.fc.weight.normal_(std=0.02 * width**-0.5)
        head.fc.weight[:, -width:] += torch.diag(spread[-1])
        layer = head.midlayer
        layer.hidden_norm.weight.copy_(get("input_layernorm.weight"))
        layer.post_attention_layernorm.weight.copy_(get("post_attention_layernorm.weight"))
        for name in ("q_proj", "k_proj", "v_proj"):
            matrix = getattr(layer.self_attn, name).weight
            matrix.normal_(std=0.3 * width**-0.5)
            matrix[:, width:] = get(f"self_attn.{name}.weight")
        layer.self_attn.o_proj.weight.copy_(get("self_attn.o_proj.weight") / size)
        if head.config.intermediate_size == target.config.intermediate_size:
            layer.mlp.gate_proj.weight.copy_(get("mlp.gate_proj.weight"))
            layer.mlp.up_proj.weight.copy_(get("mlp.up_proj.weight"))
            layer.mlp.down_proj.weight.copy_(get("mlp.down_proj.weight") / size)
        head.norm.weight.copy_(weights["model.norm.weight"].float())
        table = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        head.lm_head.weight.copy_(table[head.vocab_ids])
