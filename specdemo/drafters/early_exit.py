"""The target drafts for itself with its first layers (self-speculation; Elhoushi et al. 2024, 2404.16710).

Nothing is trained and nothing is loaded: the output layer reads the residual stream where it happens to stand. It shows
why heads are trained, since models learn to speak in their last layers only (LayerSkip trains them to exit early).
"""

from __future__ import annotations

import torch

from specdemo.drafters.base import Proposal, Stop
from specdemo.models.device import to_device
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.runner import Runner
from specdemo.sampling import Uniforms, draw, probabilities
from specdemo.settings import SamplerSettings


class EarlyExit:
    """A chain drawn from the target's first layers, in the target's own cache.

    Keys and values of those layers are what the target itself would compute, so verification writes the same again and
    nothing has to be read twice.
    """

    taps, longest_context = (), None

    def __init__(self, sampler: SamplerSettings, seed: int, device: torch.device) -> None:
        self.sampler = sampler
        self.uniforms = Uniforms(seed, "draft", device)

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        assert isinstance(target, LeanRunner)
        self.target = target

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        target, new = self.target, to_device(context[-1:], self.target.weights.device)
        length, ids, rows = target.length, [], []
        while len(ids) < min(gamma, target.capacity - len(context)) and not stop():
            q = probabilities(target.shallow(new)[-1], self.sampler)
            new = draw(q, self.uniforms.draw(1))
            ids.append(new)
            rows.append(q)
        target.rollback(length)
        if not ids:
            return Proposal.none(target.weights.vocab_size, target.weights.device)
        return Proposal(torch.cat(ids), torch.stack(rows), len(ids))

    def rollback(self, length: int) -> None:
        """Nothing of its own to forget."""
