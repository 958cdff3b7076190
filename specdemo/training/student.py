"""The draft model while it learns: a small Llama with a reduced vocabulary.

It is the block that `specdemo.models.lean` computes, as trainable modules under transformers' parameter names, so
an exported folder needs no conversion. Draft tokens are numbered by `vocab_ids` (draft id -> target id); one more
embedding row stands for every token outside, which the draft can read but never propose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from specdemo.errors import UserError
from specdemo.models.block import rotary_frequencies, rotary_tables
from specdemo.models.vocabulary import draft_ids_of
from specdemo.training.dataset import Batch
from specdemo.training.target import Target

MAX_WIDTH = 16_384
MAX_MLP = 65_536
MAX_LAYERS = 128
MAX_HEADS = 256


@dataclass(frozen=True)
class Shape:
    """How large a draft is: `vocab` tokens that it can propose, `width` of its residual stream, `layers` blocks, `mlp`
    units inside each. Raises UserError for what cannot be computed."""

    vocab: int
    width: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int

    def __post_init__(self) -> None:
        most = {"width": MAX_WIDTH, "layers": MAX_LAYERS, "mlp": MAX_MLP, "heads": MAX_HEADS, "kv_heads": self.heads}
        for name, bound in most.items():
            value = getattr(self, name)
            if not 1 <= value <= bound:
                raise UserError(f"{name.replace('_', ' ').capitalize()} is {value}: it should be 1 to {bound}.")
        if self.width % self.heads:
            raise UserError(f"The width {self.width} cannot be shared by {self.heads} heads: choose a multiple.")
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads: choose a multiple.")


def make_config(target_config, vocab: int, width: int, layers: int, mlp: int, heads: int, kv_heads: int) -> LlamaConfig:
    """A draft's configuration: `vocab` tokens and the row for all others; constants as in the target."""
    return LlamaConfig(
        vocab_size=vocab + 1,
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=mlp,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64 if width >= 128 else 16,
        max_position_embeddings=min(4096, target_config.max_position_embeddings),
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        inside, shared = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, inside, bias=False)
        self.k_proj = nn.Linear(width, shared, bias=False)
        self.v_proj = nn.Linear(width, shared, bias=False)
        self.o_proj = nn.Linear(inside, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention within each row of x [batch, length, width]."""
        split = lambda y: y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class RMSNorm(nn.RMSNorm):
    """RMSNorm in its input's precision: torch's fused kernel wants the weight to have it too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class GatedMLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Student(nn.Module):
    """The trainable draft. `vocab_ids` int64 [vocab] names the target's token of every draft token."""

    def __init__(self, config: LlamaConfig, vocab_ids: Tensor, target_vocab: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        cos, sin = rotary_tables(*rotary_frequencies(config, config.head_dim), config.max_position_embeddings)
        vocab_ids = vocab_ids.long()
        draft_ids = draft_ids_of(vocab_ids, target_vocab)
        for name, value in (("cos", cos), ("sin", sin), ("vocab_ids", vocab_ids), ("draft_ids", draft_ids)):
            self.register_buffer(name, value, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights of 1/sqrt(inputs); what is added to the residual stream starts smaller (GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                shrink = (2 * len(self.layers)) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(parameter, std=shrink * parameter.shape[1] ** -0.5)

    @property
    def head(self) -> Tensor:
        """The output layer [vocab, width]: the embedding without the row of the tokens outside."""
        return self.embed_tokens.weight[:-1]

    @property
    def longest(self) -> int:
        """Tokens that a row may have."""
        return len(self.cos)

    @property
    def inner(self) -> list[nn.Parameter]:
        """The matrices inside, for the optimiser that is meant for them."""
        return [p for p in self.layers.parameters() if p.dim() == 2]

    @property
    def description(self) -> dict:
        return self.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}

    def exported(self) -> dict[str, Tensor]:
        return {f"model.{name}": value for name, value in self.named_parameters()} | {"vocab_ids": self.vocab_ids.int()}

    def states(self, batch: Batch, depths: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """See `Learner`. A draft model reads its own drafts as it reads text: it has one depth."""
        hidden = self(batch.ids[:, :-1], dtype)[batch.where]
        return [(hidden, torch.arange(len(hidden), device=hidden.device))]

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Hidden states [batch, length, width] in `dtype`, after the last norm, from *target* ids."""
        length = ids.shape[1]
        x = self.embed_tokens(self.draft_ids[ids]).to(dtype)
        cos, sin = self.cos[:length].to(dtype), self.sin[:length].to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


def choose_vocabulary(counts: np.ndarray, tokenizer, size: int) -> Tensor:
    """The `size` most frequent target tokens (counts [target vocab]), special and one-character tokens always in.

    A byte-pair vocabulary is numbered by how frequent its pieces were where the tokenizer was trained, so low ids get
    a small head start (Zipf's law): it decides among the many tokens that a small sample shows once or never.
    """
    zipf = 1 / (np.arange(len(counts)) + 100)
    counts = counts + 0.05 * counts.sum() * zipf / zipf.sum()
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    always = [i for i, piece in enumerate(pieces) if len(piece) == 1] + tokenizer.all_special_ids
    counts[always] += counts.sum()
    order = np.argsort(-counts, kind="stable")[:size]
    return torch.tensor(np.sort(order))


def project_embedding(target: Target, vocab_ids: Tensor, width: int) -> Tensor:
    """The target's embedding in its `width` strongest directions, [vocab + 1, width]; last row the mean of the rest.

    Scaled to rows of length about 0.7, so that a normed hidden state starts with logits of a few units.
    """
    table = target.weights["model.embed_tokens.weight"].float()
    mean = table.mean(0)
    _, _, directions = torch.linalg.svd(table[vocab_ids] - mean, full_matrices=False)
    outside = torch.ones(len(table), dtype=torch.bool)
    outside[vocab_ids] = False
    rows = torch.cat((table[vocab_ids], table[outside].mean(0, keepdim=True))) - mean
    projected = rows @ directions[:width].T
    projected = F.pad(projected, (0, width - projected.shape[1]))  # wider than the target: zeros, not noise
    return projected * (0.7 / projected[:-1].norm(dim=-1).mean())


def carry_embedding(target: Target, earlier: Student, vocab_ids: Tensor) -> Tensor:
    """The embedding of an earlier student for another vocabulary, [vocab + 1, width].

    Tokens that it knew keep their rows. Where it learned to put a token follows the target's own embedding to a good
    part, so a linear fit over the known ones says where the new ones begin.
    """
    table = target.weights["model.embed_tokens.weight"].float()
    known, rows = table[earlier.vocab_ids], earlier.embed_tokens.weight.detach()
    mean = rows[:-1].mean(0)
    fit = torch.linalg.lstsq(known - known.mean(0), rows[:-1] - mean).solution
    carried = (table[vocab_ids] - known.mean(0)) @ fit + mean
    places = earlier.draft_ids[vocab_ids]
    same = places < len(earlier.vocab_ids)
    carried[same] = rows[places[same]]
    return torch.cat((carried, rows[-1:]))
