"""Speculative sampling, the arithmetic: logits to probabilities, and the rule that decides over drafts.

Pure tensors, no models. p is always the target's distribution, q the drafter's, as in Chen et al. 2023
(arXiv 2302.01318) and Leviathan et al. 2023 (2211.17192). Probabilities are fp32; draws are made by inverting the
cumulative distribution in fp64 so that a 50,000-word vocabulary loses nothing to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specdemo.settings import SamplerSettings

_COLDEST = 1e-6  # below this temperature the largest logit has all the mass that fp32 can show
_NUCLEUS_GUESS = 1024  # top-p looks among this many tokens first: sorting a whole vocabulary costs milliseconds
_UNIFORMS = 4096  # made at a time: enough for most runs


class Uniforms:
    """A run's stream of independent uniforms in [0, 1), fp64.

    Acceptance tests and drafter draw from different streams of one seed. (Two torch generators would not do: their
    CPU engine keeps only 32 bits of a seed, so seeds made by adding a large constant give the same numbers.)
    """

    def __init__(self, seed: int, stream: Literal["target", "draft"], device: torch.device) -> None:
        self._generator = np.random.default_rng([seed, ("target", "draft").index(stream)])
        self._device = device
        self._left = self._more(_UNIFORMS)  # many at once, and before the run: a copy to a GPU waits for it

    def draw(self, n: int) -> Tensor:
        """n fresh uniforms [n] on the device."""
        if len(self._left) < n:
            self._left = torch.cat((self._left, self._more(max(n, _UNIFORMS))))
        drawn, self._left = self._left[:n], self._left[n:]
        return drawn

    def _more(self, n: int) -> Tensor:
        dtype = np.float32 if self._device.type == "mps" else np.float64  # Apple's GPUs have no fp64
        return torch.from_numpy(self._generator.random(n, dtype=dtype)).to(self._device)


def probabilities(logits: Tensor, sampler: SamplerSettings) -> Tensor:
    """Warp logits [..., vocab] into the distribution that tokens are drawn from, [..., vocab] fp32.

    Temperature first, then top-k, top-p and min-p, each on what the one before left over (transformers' order).
    Temperature 0 is the limit: all mass on the largest logit.

    A row that is no distribution (a NaN or +inf in it, or nothing but -inf) comes out as NaN from end to end. What is
    drawn from it means nothing, but it is a token, and the NaN beside it says so on the host: nobody has to ask before.
    """
    logits = logits.float()
    if sampler.temperature < _COLDEST:
        best, at = logits.max(-1, keepdim=True)
        nothing = best - best  # 0, and NaN where the largest logit is no number
        return nothing.expand_as(logits).scatter(-1, at, nothing + 1)
    # Subtracting the maximum first keeps logits / temperature finite however small the temperature is.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampler.temperature
    if 0 < sampler.top_k < logits.shape[-1]:
        kth = logits.topk(sampler.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probs = logits.softmax(-1)
    if sampler.top_p < 1:
        probs = _normalised(probs.masked_fill(probs < _nucleus_floor(probs, sampler.top_p), 0))
    if sampler.min_p > 0:
        probs = _normalised(probs.masked_fill(probs < sampler.min_p * probs.amax(-1, keepdim=True), 0))
    return probs


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Draw one index a row: probs [..., vocab] (need not sum to 1), u [...] uniform in [0, 1) -> ids [...]."""
    # The first index whose cumulative mass exceeds u * total: a token of probability 0 can never be it.
    cumulative = probs.to(u.dtype).cumsum(-1)
    threshold = u.unsqueeze(-1) * cumulative[..., -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return drawn.clamp_max(probs.shape[-1] - 1)  # a row of NaN has no such index


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)), [..., vocab]: what the target wants that the drafter did not offer (Chen et al., eq. 2).

    Where p and q are numerically equal nothing is left over, and p itself is returned; so it is where q is NaN, since
    a draft drawn from it is refused with certainty.
    """
    excess = (p - q).clamp_min(0)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total, p)


@dataclass(frozen=True)
class Verdict:
    """What became of a draft of n tokens. Every field stays on the device: nothing here waits for it.

    accepted [...]: how many leading drafts were kept. token [...]: the target's own token behind them (a residual draw
    after a rejection, the bonus after none), drawn from source [..., vocab]; p_token [...] is its probability under
    the target. Of the drafts: p, q, acceptance probabilities min(1, p/q) and total variation distances TV(p, q), each
    [..., n] fp32; those behind a rejection count for nothing.
    """

    accepted: Tensor
    token: Tensor
    p_token: Tensor
    p: Tensor
    q: Tensor
    accept: Tensor
    tv: Tensor
    source: Tensor


def verify(p: Tensor, q: Tensor, drafts: Tensor, u_accept: Tensor, u_token: Tensor) -> Verdict:
    """Accept or reject n drafts from left to right (Chen et al. 2023, algorithm 2; Leviathan et al. 2023, alg. 1).

    Args:
        p: target distributions [..., n + 1, vocab]; row i is the distribution that draft i must look drawn from, row
            n the one behind the last draft. Leading dimensions, if any, are the rows of a batch.
        q: the distributions the drafts were actually drawn from, [..., n, vocab]; one-hot for a drafter that does
            not sample.
        drafts: the drafted ids [..., n].
        u_accept: uniforms [..., n] in [0, 1), one for each test.
        u_token: a uniform [...] for the token that the target adds. Independent of u_accept: reusing one would tie
            the replacement to the rejection.
    """
    n = drafts.shape[-1]
    p_draft, q_draft = _at(p[..., :n, :], drafts), _at(q, drafts)
    accept = (p_draft / q_draft).clamp_max(1)
    accepted = (u_accept < accept).cumprod(-1).sum(-1)
    p_here = _row(p, accepted)
    source = p_here
    if n:
        # Behind a fully accepted draft there is no q: a row of zeros, whose residual is p itself.
        q_here = _row(q, accepted.clamp_max(n - 1)) * (accepted < n).unsqueeze(-1)
        source = residual(p_here, q_here)
    token = draw(source, u_token)
    overlap = torch.minimum(p[..., :n, :], q).sum(-1)
    return Verdict(accepted, token, _at(p_here, token), p_draft, q_draft, accept, 1 - overlap, source)


def _at(probs: Tensor, ids: Tensor) -> Tensor:
    """Probability of each id: probs [..., vocab], ids [...] -> [...]."""
    return probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def _row(probs: Tensor, index: Tensor) -> Tensor:
    """One row of each stack: probs [..., rows, vocab], index [...] -> [..., vocab]."""
    return probs.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _nucleus_floor(probs: Tensor, top_p: float) -> Tensor:
    """The smallest probability inside the nucleus, [..., 1] (Holtzman et al. 2020, 1904.09751).

    The nucleus is the smallest set of most probable tokens whose mass reaches top_p; ties with its last are kept.
    """
    # On a GPU sorting everything is cheaper than asking whether the first look was enough: the question would wait.
    guess = min(_NUCLEUS_GUESS, probs.shape[-1])
    ranked = probs if probs.is_cuda else probs.topk(guess, dim=-1).values
    if probs.is_cuda or bool((ranked.sum(-1) < top_p).any()):
        ranked = probs.sort(dim=-1, descending=True).values
    before = ranked.cumsum(-1) - ranked
    last = ((before < top_p).sum(-1, keepdim=True) - 1).clamp_min(0)  # a row of NaN has no nucleus
    return ranked.gather(-1, last)
