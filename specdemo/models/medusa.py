"""Medusa heads: each predicts one of the next tokens from the target's last state alone (Cai et al. 2024, 2401.10774).

Head k looks k + 1 tokens past the one that the target itself predicts, without knowing what stands in between. A head
is a stack of residual blocks x + silu(W x + b), under the names of the published checkpoints: "k.j.linear.weight" is
block j of head k. There each head has an output layer of its own ("k.<blocks>.weight") or, in the earlier checkpoints,
uses the target's; heads trained here share one over a reduced vocabulary ("lm_head.weight", "d2t": draft id -> target
id minus draft id).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.events import ModelInfo
from specdemo.models.block import Weights
from specdemo.models.runner import LanguageModel


class MedusaHeads:
    """Heads over one target, ready to run.

    accuracies [heads][ranks]: how often the token of that rank was the target's choice on held-out text, which is
    what a tree is built from; empty where nobody measured it.

    Args:
        config: "medusa_num_heads", "medusa_num_layers" (residual blocks a head) and perhaps "accuracies".
        tensors: the checkpoint's, emptied on the way. Raises KeyError where one is missing, ValueError where one is
            left over.
    """

    info: ModelInfo | None = None
    """Where it came from, if from a folder."""

    def __init__(self, config: dict, tensors: dict[str, Tensor], target: LanguageModel, dtype: torch.dtype) -> None:
        self.device, self.taps = target.device, (target.depth + 1,)
        heads = range(config["medusa_num_heads"])
        self.accuracies: list[list[float]] = config.get("accuracies", [])[: len(heads)]
        weights = Weights(tensors, self.device, dtype, eps=0.0, coarse=True)
        blocks = range(config["medusa_num_layers"])
        self._blocks = [[weights.linear(f"{head}.{block}.", "linear") for block in blocks] for head in heads]
        self.vocab_ids = weights.vocab_ids(target.vocab_size)
        if "lm_head.weight" in weights:
            self._outputs = [weights.linear("", "lm_head")]
        elif any(f"{head}.{len(blocks)}.weight" in weights for head in heads):
            self._outputs = [weights.linear(f"{head}.", str(len(blocks))) for head in heads]
        else:
            self._outputs = [target.predict]
        self.vocab_size = target.vocab_size if self.vocab_ids is None else len(self.vocab_ids)
        if tensors:
            raise ValueError(f"{next(iter(tensors))} is no weight of a Medusa head.")
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._blocks)

    @torch.inference_mode()
    def logits(self, state: Tensor) -> Tensor:
        """Logits [heads, its vocabulary] fp32 from the target's state [width] after the last norm."""
        rows = []
        for blocks in self._blocks:
            x = state[None].to(self._dtype)
            for block in blocks:
                x = x + F.silu(block(x))
            rows.append(x)
        if len(self._outputs) == 1:  # one product for all heads
            logits = self._outputs[0](torch.cat(rows))
        else:
            logits = torch.cat([output(x) for output, x in zip(self._outputs, rows, strict=True)])
        return logits[..., : self.vocab_size].float()  # rows of padding stand for no token

    def target_ids(self, ids: Tensor) -> Tensor:
        """The target's ids of the heads' own, any shape."""
        return ids if self.vocab_ids is None else self.vocab_ids[ids]
