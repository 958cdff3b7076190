"""Drafters that propose trees out of a small model, in every way that children may be chosen."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specdemo.drafters.base import Proposal, Stop
from specdemo.models.runner import LanguageModel, Runner
from specdemo.models.tree import ROOT, Tree
from specdemo.sampling import Uniforms, draw, probabilities
from specdemo.settings import SamplerSettings

Choice = Literal["top", "chosen", "with replacement", "without replacement"]
"""The best children with one-hot q, the same without saying q at all, or draws."""


class TreeOfSamples:
    """`widths` children at each depth. Reads everything afresh for every node: slow, and hard to get wrong."""

    taps, longest_context = (), None

    def __init__(
        self, model: LanguageModel, sampler: SamplerSettings, seed: int, widths: tuple[int, ...], choice: Choice
    ) -> None:
        self.model, self.sampler, self.widths, self.choice = model, sampler, widths, choice
        self.uniforms = Uniforms(seed, "draft", model.device)

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        """Nothing is kept."""

    def rollback(self, length: int) -> None:
        """Nothing is kept."""

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        ids: list[int] = []
        rows: list[Tensor] = []
        parents: list[int] = []
        leaves = [(ROOT, list(context))]
        for width in self.widths[: max(gamma, 0)]:
            grown = []
            for parent, text in leaves:
                for token, q in self._children(text, width):
                    grown.append((len(ids), [*text, token]))
                    ids.append(token)
                    rows.append(q)
                    parents.append(parent)
            leaves = grown
        if not ids:
            return Proposal.none(self.model.vocab_size, self.model.device)
        q = None if self.choice == "chosen" else torch.stack(rows)
        return Proposal(torch.tensor(ids), q, 0, Tree(tuple(parents)))

    def _children(self, text: list[int], width: int) -> list[tuple[int, Tensor]]:
        """(token, the distribution that it was drawn from) of each child behind a text."""
        logits = self.model.runner(len(text)).forward(text)[-1]
        if self.choice in ("top", "chosen"):
            chosen = logits.topk(width).indices.tolist()
            return [(token, torch.nn.functional.one_hot(torch.tensor(token), len(logits)).float()) for token in chosen]
        q, drawn = probabilities(logits, self.sampler), []
        for _ in range(width):
            if q.sum() == 0:
                break  # fewer tokens than children
            token = int(draw(q, self.uniforms.draw(1)[0]))
            drawn.append((token, q))
            if self.choice == "without replacement":
                q = q.clone()
                q[token] = 0
                q = q / q.sum() if q.sum() > 0 else q
        return drawn
