"""Medusa heads while they learn (Cai et al. 2024, 2401.10774): residual blocks on the target's last state.

Index t of a row holds the state behind token t, from which the target predicts token t + 1; head k predicts token
t + 2 + k. All heads share one output layer over a reduced vocabulary: it would be most of their weights otherwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdemo.models.vocabulary import draft_ids_of, offsets_of
from specdemo.training.dataset import Batch
from specdemo.training.target import Target


class ResidualBlock(nn.Module):
    """x + silu(W x + b). W and b begin at zero: a head begins as the target's own prediction."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.Module):
    """The trainable heads. `vocab_ids` int64 [vocab] names the target's token of every draft token."""

    def __init__(self, target: Target, vocab_ids: Tensor, heads: int, blocks: int) -> None:
        super().__init__()
        width, vocab_ids = target.config.hidden_size, vocab_ids.long()
        self.blocks = nn.ModuleList(nn.Sequential(*(ResidualBlock(width) for _ in range(blocks))) for _ in range(heads))
        table = target.weights.get("lm_head.weight", target.weights["model.embed_tokens.weight"])
        self.lm_head = nn.Linear(width, len(vocab_ids), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(table[vocab_ids])
        draft_ids = draft_ids_of(vocab_ids, len(table))
        norm = target.weights["model.norm.weight"].float()
        for name, value in (("vocab_ids", vocab_ids), ("draft_ids", draft_ids), ("last_norm", norm)):
            self.register_buffer(name, value, persistent=False)
        self.eps = target.config.rms_norm_eps
        self.accuracies: list[list[float]] = []

    @property
    def head(self) -> Tensor:
        """The output layer [vocab, width]."""
        return self.lm_head.weight

    longest = 1 << 20
    """Tokens that a row may have: positions do not matter to these heads."""

    @property
    def inner(self) -> list[nn.Parameter]:
        """The matrices inside, for the optimiser that is meant for them."""
        return [p for p in self.blocks.parameters() if p.dim() == 2]

    @property
    def description(self) -> dict:
        return {
            "head": "medusa",
            "medusa_num_heads": len(self.blocks),
            "medusa_num_layers": len(self.blocks[0]),
            "accuracies": self.accuracies,
        }

    def exported(self) -> dict[str, Tensor]:
        named = {name.removeprefix("blocks."): value for name, value in self.named_parameters()}
        return named | {"d2t": offsets_of(self.vocab_ids)}

    def states(self, batch: Batch, depths: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """See `Learner`: depth j is head j."""
        assert batch.features is not None
        width = self.head.shape[1]
        hidden = F.rms_norm(batch.features[..., -width:].float(), (width,), self.last_norm, self.eps).to(dtype)
        numbers = batch.where.flatten().cumsum(0).sub(1).view_as(batch.where)  # of the positions that are learned from
        found = []
        for head, blocks in enumerate(self.blocks[:depths]):
            # Column t of `where` speaks of token t + 1, so that of token t + 2 + head stands 1 + head further.
            seen = batch.where[:, 1 + head :]
            found.append((blocks(hidden[:, : seen.shape[1]][seen]), numbers[:, 1 + head :][seen]))
        return found
