"""An independent small language model drafts (Chen et al. 2023, 2302.01318; Leviathan et al. 2023, 2211.17192)."""

from __future__ import annotations

import torch
from torch import Tensor

from specdemo.drafters.base import Proposal, Stop
from specdemo.models.runner import LanguageModel, chunks
from specdemo.sampling import Uniforms, draw, probabilities
from specdemo.settings import SamplerSettings


class DraftModel:
    """Samples each draft from the small model's own distribution, warped by the visitor's sampler.

    Any q is exact as long as it is what the token was drawn from, so a reduced vocabulary only costs acceptance:
    tokens outside it have q = 0.
    """

    def __init__(
        self, model: LanguageModel, vocab_size: int, sampler: SamplerSettings, seed: int, capacity: int
    ) -> None:
        self.model, self.vocab_size, self.sampler = model, vocab_size, sampler
        self.runner = model.runner(capacity)
        self.uniforms = Uniforms(seed, "draft", model.device)

    def prefill(self, prompt: list[int], stop: Stop) -> None:
        if len(prompt) > self.runner.capacity:
            return  # a draft's context may be shorter than the target's; it will have nothing to propose
        for chunk in chunks(prompt[:-1]):
            if stop():
                return
            self.runner.prefill(chunk)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        gamma = min(gamma, self.runner.capacity - len(context))
        ids: list[Tensor] = []
        rows: list[Tensor] = []
        # After a fully accepted round the cache lacks the last draft as well as the bonus token: whatever of the
        # context is not in it yet goes in now, in one pass.
        new = context[self.runner.length :]
        while len(ids) < gamma and not stop():
            q = self._full(probabilities(self.runner.forward(new).logits[-1], self.sampler))
            token = draw(q, self.uniforms.draw(1)[0])
            ids.append(token)
            rows.append(q)
            new = [int(token)]
        if not ids:
            return Proposal.none(self.vocab_size, self.model.device)
        return Proposal(torch.stack(ids), torch.stack(rows))

    def rollback(self, length: int) -> None:
        self.runner.rollback(min(length, self.runner.length))

    def _full(self, q: Tensor) -> Tensor:
        """Spread probabilities [reduced vocab] over the target's vocabulary, [vocab]."""
        if self.model.vocab_ids is None and len(q) == self.vocab_size:
            return q
        ids = torch.arange(len(q), device=q.device) if self.model.vocab_ids is None else self.model.vocab_ids
        return q.new_zeros(self.vocab_size).index_copy_(0, ids, q)
