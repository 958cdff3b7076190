"""Measuring what rounds cost, so that a neighbour on the machine does not end up in the figures.

Everything is told in plain steps of the target, so every piece of work is timed beside such a step, again and again,
in turn: a machine that is slower for a while is so for both, and the median forgets a stall. Where the ratios still
scatter too much, usual figures are taken instead, and said to be. What was measured is remembered: loading again costs
nothing, and the same seed gives the same draws, since how far to draft is decided by these figures.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from pydantic import BaseModel

from specdemo.models.cache import KVCache
from specdemo.models.costs import Costs
from specdemo.models.device import processor_name, seconds_of
from specdemo.models.heads import Head
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.medusa import MedusaHeads
from specdemo.models.remembered import keep, recall
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import ROOT, Tree
from specdemo.sampling import draw, probabilities, verify
from specdemo.settings import MAX_GAMMA, MAX_NODES, SamplerSettings

Timed = Callable[[], float]
"""Does a piece of work and gives the seconds that it took."""

Work = Callable[[], object]

_CONTEXT = 100  # tokens in the cache while times are taken
_LENGTHS = (2, 3, 5, 9, 17, 65)  # passes that are timed; the others lie on the lines between
_BEHIND = 16  # tokens that a draft which was not asked for a while has to read
_EXPANDED = 4  # nodes of a tree that a head is usually asked about together
_GREEDY = SamplerSettings(temperature=0)

_FEWEST, _MOST = 4, 12  # times that everything is timed
_BUDGET = 15.0  # seconds until the machine counts as too busy
_ERROR, _SMALL_ERROR = 0.08, 0.01  # of a median: as a share of it, and in steps

BUSY = (
    "This machine was too busy to measure what drafting costs, so usual figures stand in: live sizes may not be the "
    "best. Load the pair again when it is quiet."
)


class Measured(BaseModel):
    """What work takes in plain target steps, and the seconds of one. passes: the target over 1, 2, ... tokens.
    overhead: deciding over a draft. steps, reads: a draft step, and each token to be read before, by what computes it.
    """

    step: float = 1.0
    passes: list[float]
    overhead: float
    steps: dict[str, float]
    reads: dict[str, float] = {}

    @property
    def costs(self) -> Costs:
        return Costs(0.0, tuple(self.passes), self.overhead, self.step)


@dataclass(frozen=True)
class Parts:
    """What computes in a pair."""

    target: LanguageModel
    draft: LanguageModel | None
    heads: Mapping[str, Head]

    def name(self) -> str:
        """What figures are kept under: they are those of these weights on this device with this code."""
        try:
            ours = version("specdemo")
        except PackageNotFoundError:  # run from its folder, as on a Space
            ours = "source"
        models = [self.target.info, self.draft and self.draft.info, *(head.info for head in self.heads.values())]
        names = [f"{model.name} {model.dtype} {model.sha256 or model.revision}" for model in models if model]
        return f"costs {' '.join(names)} on {processor_name(self.target.device)} {self.target.device.type} {ours}"


def measure(parts: Parts) -> Measured | None:
    """What a pair's work takes here, from an earlier time or measured now, on models that are warmed up; None where
    this machine is too busy to tell."""
    name = parts.name()
    known = recall(name)
    if known is not None:
        return Measured.model_validate(known)
    pieces = _pieces(parts)
    found = steady(pieces.pop("pass 1"), pieces, _FEWEST, _MOST, _BUDGET)
    if found is None:
        return None
    measured = _measured(*found)
    keep(name, measured.model_dump())
    return measured


def steady(
    unit: Timed,
    pieces: Mapping[str, Timed],
    fewest: int,
    most: int,
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, dict[str, float]] | None:
    """Seconds of the unit, and how many units each piece of work takes.

    Medians over rounds in which each piece is timed right behind the unit, `fewest` to `most` of them: as many as it
    takes until every median is sure enough. None where that is never so, or not within `budget` seconds.
    """
    units: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in pieces}
    end = clock() + budget
    for round_ in range(1, most + 1):
        for name, timed in pieces.items():
            units.append(unit())
            ratios[name].append(timed() / units[-1])
        if round_ >= fewest and all(map(_is_sure, ratios.values())):
            return statistics.median(units), {name: statistics.median(taken) for name, taken in ratios.items()}
        if clock() > end:
            break
    return None


def _is_sure(ratios: list[float]) -> bool:
    """Whether a median's standard error is small: 0.93 interquartile ranges / sqrt(n), were the scatter normal."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return 0.93 * (high - low) / len(ratios) ** 0.5 <= max(_ERROR * median, _SMALL_ERROR)


def usual(parts: Parts) -> Measured:
    """Figures where none could be measured, in steps instead of seconds: a processor computes every token, a GPU reads
    weights anyway."""
    slope = 0.01 if parts.target.device.type == "cuda" else 0.06
    passes = [1 + slope * k for k in range(MAX_NODES + 1)]
    steps = {part: 0.8 if part == "layers" else 0.1 for part in _drafting(parts)}
    return Measured(passes=passes, overhead=0.02, steps=steps)


def _measured(step: float, ratios: dict[str, float]) -> Measured:
    """Figures from what every piece takes. A pass never costs more than a longer one: it could be made longer."""
    known = {1: 1.0} | {k: ratios[f"pass {k}"] for k in _LENGTHS if f"pass {k}" in ratios}
    rising = [min(ratio for longer, ratio in known.items() if longer >= k) / min(known.values()) for k in known]
    steps = {name.removeprefix("step "): value for name, value in ratios.items() if name.startswith("step ")}
    reading = {"draft": ratios["reading draft"] - steps["draft"]} if "draft" in steps else {}
    return Measured(
        step=step,
        passes=np.interp(range(1, MAX_NODES + 2), list(known), rising).tolist(),  # flat beyond the last
        overhead=max(0.0, ratios["deciding"] - ratios["deciding plainly"]),
        steps=steps,
        reads={part: max(0.0, value / _BEHIND) for part, value in reading.items()},
    )


def _drafting(parts: Parts) -> list[str]:
    """What can take draft steps, by the names that drafters need it by."""
    lean = isinstance(parts.target, LeanLanguageModel)
    return [*parts.heads, *(["draft"] if parts.draft else []), *(["layers"] if lean else [])]


def _pieces(parts: Parts) -> dict[str, Timed]:
    """A plain step, and everything that is timed behind one. (In a round, too, a drafter does not find its weights in
    the processor's cache, and a step that does is up to twice as fast.)"""
    target, device = parts.target, parts.target.device
    passes = {f"pass {k}": timed for k, timed in _passes(target).items()}
    steps = {f"step {kind}": _head_step(head, target) for kind, head in parts.heads.items()}
    if parts.draft:
        steps |= {"step draft": _draft_step(parts.draft, 1), "reading draft": _draft_step(parts.draft, 1 + _BEHIND)}
    if isinstance(target, LeanLanguageModel):
        steps["step layers"] = _shallow_step(target)
    steps |= {"deciding": _deciding(target, 4), "deciding plainly": _deciding(target, 0)}
    for step in steps.values():
        step()  # warms it up
    return passes | {name: functools.partial(seconds_of, step, device) for name, step in steps.items()}


def _context(target: LanguageModel) -> int:
    return max(1, min(_CONTEXT, target.max_length - MAX_GAMMA - 1))


def _passes(target: LanguageModel) -> dict[int, Timed]:
    """Passes of the target over 1, 2, ... tokens, as far as it has room, all over one cache: on a GPU each would be one
    more than any run needs, and displace those whose passes are recorded."""
    context = _context(target)
    lengths = [k for k in (1, *_LENGTHS) if k <= target.max_length - context]
    runner = target.runner(context + max(lengths), passes=lengths)
    runner.prefill([0] * context)

    def call(k: int) -> None:
        runner.forward([0] * k)
        runner.rollback(context)

    return {k: functools.partial(seconds_of, functools.partial(call, k), target.device) for k in lengths}


def _deciding(target: LanguageModel, drafts: int) -> Work:
    """Warping and deciding over some drafts."""
    device = target.device
    logits = torch.randn(drafts + 1, target.vocab_size, generator=torch.Generator().manual_seed(0)).to(device)
    ids, u = torch.arange(drafts, device=device), torch.full((drafts + 1,), 0.5, device=device)
    q = probabilities(logits[:drafts], _GREEDY)

    def call() -> None:
        int(verify(probabilities(logits, _GREEDY), q, ids, u[:-1], u[-1]).token)

    return call


def _draft_step(draft: LanguageModel, tokens: int) -> Work:
    """A draft model's step that reads some tokens, drawing its own included."""
    length = max(0, min(_CONTEXT, draft.max_length - tokens))
    runner, u = draft.runner(length + tokens, passes=[1]), torch.full((1,), 0.5, device=draft.device)
    if length:
        runner.prefill([0] * length)
    new = [0] * min(tokens, draft.max_length)

    def step() -> None:
        draw(probabilities(runner.forward(new)[-1], _GREEDY), u)
        runner.rollback(length)

    return step


def _shallow_step(target: LeanLanguageModel) -> Work:
    """A pass through the first layers alone, which draft in early exit."""
    runner = target.runner(_CONTEXT + 1)
    runner.prefill([0] * min(_CONTEXT, target.max_length - 1))
    token = torch.zeros(1, dtype=torch.long, device=target.device)

    def step() -> None:
        runner.shallow(token).argmax()
        runner.rollback(runner.length - 1)

    return step


def _head_step(head: Head, target: LanguageModel) -> Work:
    """A head's step: of an EAGLE head over as many nodes as are usually expanded together."""
    runner = target.runner(_CONTEXT, taps=head.taps)
    runner.prefill([0] * min(_CONTEXT, target.max_length - 1))
    if isinstance(head, MedusaHeads):
        return lambda: head.logits(runner.features[-1]).softmax(-1).topk(_EXPANDED)
    cache, ids = KVCache(head, _CONTEXT + _EXPANDED), torch.zeros(_CONTEXT, dtype=torch.long, device=target.device)
    states = head.forward(head.states(runner.features), ids[: runner.length], cache)[-1:]

    def step() -> None:
        here = head.forward(states.expand(_EXPANDED, -1), ids[:_EXPANDED], cache, Tree((ROOT,) * _EXPANDED))
        head.logits(here).softmax(-1).topk(_EXPANDED)
        cache.lengths = [runner.length]

    return step
