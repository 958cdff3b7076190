"""An independent small language model drafts (Chen et al. 2023, 2302.01318; Leviathan et al. 2023, 2211.17192)."""

from __future__ import annotations

import torch
from torch import Tensor

from specdemo.drafters.base import Proposal, Stop
from specdemo.events import NoDraft
from specdemo.models.runner import LanguageModel, Runner, chunks
from specdemo.sampling import Uniforms, draw, probabilities
from specdemo.settings import SamplerSettings


class DraftModel:
    """Samples each draft from the small model's own distribution, warped by the visitor's sampler.

    Any q is exact as long as it is what the token was drawn from, so a reduced vocabulary only costs acceptance:
    tokens outside it have q = 0.

    With `confidence` above 0 a draft ends where the chance that its next token survives looks smaller. The chance is
    the product of the model's largest probabilities so far (at temperature 1: a warped one says nothing at 0), which
    for a distilled draft is close to the truth. It is known before the token is drawn; dropping a drawn token because
    it came out unlikely would bias the text. Looking at it waits for the device once a step.
    """

    taps = ()

    def __init__(
        self,
        model: LanguageModel,
        vocab_size: int,
        sampler: SamplerSettings,
        seed: int,
        capacity: int,
        confidence: float = 0.0,
    ) -> None:
        self.model, self.vocab_size, self.sampler, self.confidence = model, vocab_size, sampler, confidence
        self.runner = model.runner(capacity, passes=[1, 2])
        self.longest_context = self.runner.capacity if self.runner.capacity < capacity else None
        self.uniforms = Uniforms(seed, "draft", model.device)

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        if len(prompt) > self.runner.capacity:
            return  # a draft's context may be shorter than the target's; it will have nothing to propose
        for chunk in chunks(prompt[:-1]):
            if stop():
                return
            self.runner.prefill(chunk)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        gamma = min(gamma, self.runner.capacity - len(context))
        why: NoDraft | None = "draft_full" if gamma < 1 else None
        ids: list[Tensor] = []
        rows: list[Tensor] = []
        steps, survival = 0, 1.0
        # After a fully accepted round the cache lacks the last draft as well as the bonus token: whatever of the
        # context is not in it yet goes in now, in one pass.
        new: list[int] | Tensor = context[self.runner.length :]
        while len(ids) < gamma and not stop():
            logits = self.runner.forward(new)[-1]
            steps += 1
            if self.confidence > 0:
                survival *= float(logits.softmax(-1).amax())
                if survival < self.confidence:
                    why = "unsure"
                    break
            q = probabilities(logits, self.sampler)
            # The token stays on the device: nothing waits for it before the target has seen the whole draft.
            new = target_ids(self.model, draw(q, self.uniforms.draw(1)))
            ids.append(new)
            rows.append(q)
        if not ids:
            return Proposal.none(self.vocab_size, self.model.device, why, steps)
        return Proposal(torch.cat(ids), spread(self.model, torch.stack(rows), self.vocab_size), steps)

    def rollback(self, length: int) -> None:
        self.runner.rollback(min(length, self.runner.length))


def target_ids(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The target's ids of tokens that a draft has drawn, any shape."""
    return tokens if model.vocab_ids is None else model.vocab_ids[tokens]


def spread(model: LanguageModel, q: Tensor, vocab_size: int) -> Tensor:
    """A draft's probabilities [..., its vocabulary] over the target's, [..., vocab_size]: 0 where it cannot propose."""
    if model.vocab_ids is None and q.shape[-1] == vocab_size:
        return q
    ids = torch.arange(q.shape[-1], device=q.device) if model.vocab_ids is None else model.vocab_ids
    return q.new_zeros(*q.shape[:-1], vocab_size).index_copy_(-1, ids, q)
