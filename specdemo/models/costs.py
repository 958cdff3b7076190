"""What a round costs on this machine, in units of one plain target step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from specdemo.models.cache import KVCache
from specdemo.models.device import seconds_of
from specdemo.models.heads import Head
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.medusa import MedusaHeads
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import ROOT, Tree
from specdemo.sampling import draw, probabilities, verify
from specdemo.settings import MAX_GAMMA, MAX_NODES, SamplerSettings

_CONTEXT = 100  # tokens in the cache while times are taken
_LENGTHS = (1, 2, 3, 5, 9, 17, 33, 65)  # passes that are timed; the others lie on the lines between
_REPEATS = 3
_EXPANDED = 4  # nodes of a tree that a head is usually asked about together
_GREEDY = SamplerSettings(temperature=0)


@dataclass(frozen=True)
class Costs:
    """c: a draft step, drawing its token included (each drafter has its own). v: passes over 1, 2, ... tokens, v[0]
    being 1. o: warping and deciding over a draft, beyond what a plain step has of it. step: seconds of a pass over one
    token, the unit."""

    c: float
    v: tuple[float, ...]
    o: float
    step: float = 1.0

    def round(self, steps: int, drafted: int) -> float:
        """A round in which `steps` draft steps gave `drafted` tokens."""
        return steps * self.c + self.v[min(drafted, len(self.v) - 1)] + (self.o if drafted else 0.0)


TEXTBOOK = Costs(c=0.05, v=(1.0,) * (MAX_NODES + 1), o=0.0)
"""Where nothing has been measured: verification is free and a draft step nearly so."""


def measure_costs(target: LanguageModel) -> Costs:
    """Time the passes that decoding makes, on a target that is warmed up: about two seconds for a step of 30 ms.

    Draft steps cost nothing in what is returned; see `draft_step`, `head_step` and `shallow_step`.
    """
    context = max(1, min(_CONTEXT, target.max_length - MAX_GAMMA - 1))
    lengths = [k for k in _LENGTHS if context + k <= target.max_length]
    passes = dict(zip(lengths, _times(target, context, lengths), strict=True))
    v = tuple(_between(passes, k) / passes[1] for k in range(1, MAX_NODES + 2))
    o = _overhead(target, 4) - _overhead(target, 0)
    return Costs(0.0, v, max(0.0, o) / passes[1], passes[1])


def draft_step(draft: LanguageModel, target: LanguageModel) -> float:
    """Seconds of a draft model's step, drawing its token included."""
    runner, u = draft.runner(_CONTEXT + 1, passes=[1]), torch.full((1,), 0.5, device=draft.device)
    runner.prefill([0] * min(_CONTEXT, draft.max_length - 1))

    def step() -> None:
        draw(probabilities(runner.forward([0])[-1], _GREEDY), u)
        runner.rollback(runner.length - 1)

    return _seconds_of_step(step, target)


def shallow_step(target: LeanLanguageModel) -> float:
    """Seconds of a pass through the first layers alone, which draft in early exit."""
    runner = target.runner(_CONTEXT + 1)
    runner.prefill([0] * min(_CONTEXT, target.max_length - 1))
    token = torch.zeros(1, dtype=torch.long, device=target.device)

    def step() -> None:
        runner.shallow(token).argmax()
        runner.rollback(runner.length - 1)

    return _seconds_of_step(step, target)


def head_step(head: Head, target: LanguageModel) -> float:
    """Seconds of a head's step: of an EAGLE head over as many nodes as are usually expanded together."""
    runner = target.runner(_CONTEXT, taps=head.taps)
    runner.prefill([0] * min(_CONTEXT, target.max_length - 1))
    if isinstance(head, MedusaHeads):
        return _seconds_of_step(lambda: head.logits(runner.features[-1]).softmax(-1).topk(_EXPANDED), target)
    cache, ids = KVCache(head, _CONTEXT + _EXPANDED), torch.zeros(_CONTEXT, dtype=torch.long, device=target.device)
    states = head.forward(head.states(runner.features), ids[: runner.length], cache)[-1:]

    def step() -> None:
        here = head.forward(states.expand(_EXPANDED, -1), ids[:_EXPANDED], cache, Tree((ROOT,) * _EXPANDED))
        head.logits(here).softmax(-1).topk(_EXPANDED)
        cache.lengths = [runner.length]

    return _seconds_of_step(step, target)


def _seconds_of_step(step: Callable[[], object], target: LanguageModel) -> float:
    """Median of a few, each behind a pass of the target: in a round a drafter does not find its weights in the
    processor's cache, and a step that does is up to twice as fast."""
    runner = target.runner(_CONTEXT + 1, passes=[1])
    runner.prefill([0] * min(_CONTEXT, target.max_length - 1))
    seconds = []
    for _ in range(2 * _REPEATS + 2):
        runner.forward([0])
        runner.rollback(runner.length - 1)
        seconds.append(seconds_of(step, target.device))
    return statistics.median(seconds[1:])  # the first one warms up


def _times(model: LanguageModel, context: int, lengths: list[int]) -> list[float]:
    """Seconds of a pass over each number of tokens, the median of a few taken in turn."""
    runner = model.runner(context + max(lengths), passes=lengths)
    runner.prefill([0] * context)

    def once(k: int) -> float:
        def call() -> None:
            runner.forward([0] * k)
            runner.rollback(context)

        return seconds_of(call, model.device)

    rounds = [[once(k) for k in lengths] for _ in range(_REPEATS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _overhead(target: LanguageModel, drafts: int) -> float:
    """Seconds of warping and deciding over some drafts."""
    device = target.device
    logits = torch.randn(drafts + 1, target.vocab_size, device=device)
    ids, u = torch.arange(drafts, device=device), torch.full((drafts + 1,), 0.5, device=device)
    q = probabilities(logits[:drafts], _GREEDY)

    def call() -> None:
        int(verify(probabilities(logits, _GREEDY), q, ids, u[:-1], u[-1]).token)

    return statistics.median(seconds_of(call, device) for _ in range(2 * _REPEATS + 1))


def _between(points: dict[int, float], k: int) -> float:
    """Linear interpolation between the nearest measured lengths (ascending), flat beyond the last."""
    return float(np.interp(k, list(points), list(points.values())))
