"""Two or three lanes, one device, own clocks.

A lane's clock counts the compute time that the lane has used. Whoever is behind moves next, so at every moment all
lanes have had the same time and the page shows the true relative speed, though they take turns on one device.
"""

from __future__ import annotations

import math
import platform
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version

import torch

from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Auto, Fixed, Policy
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import NEEDS, DraftJob, Kind, best_drafter, find_drafter
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.errors import UserError
from specdemo.events import (
    End,
    Event,
    GreedyCheck,
    GreedyVerdict,
    Lane,
    LaneEvent,
    Machine,
    RaceEnd,
    RaceEvent,
    RaceStart,
    Round,
    Trace,
)
from specdemo.models.costs import Costs
from specdemo.models.device import enter, processor_name
from specdemo.models.loading import LoadedPair
from specdemo.models.runner import LanguageModel, chunks
from specdemo.settings import BEST, Settings

_PACKAGES = ("torch", "transformers", "gradio")
_BADNESS: tuple[GreedyVerdict, ...] = ("identical", "unchecked", "near_tie", "different")
_NOISE = {"fp32": 2e-3, "bf16": 0.25, "fp16": 0.05}
"""Logit gaps within which two batch shapes may disagree. Measured between one-token and batched passes: 2e-4 in fp32;
the 16-bit formats have steps of 0.125 and 0.016 at logits between 16 and 32."""


def race(
    loaded: LoadedPair, settings: Settings, stop: threading.Event, costs: Mapping[Lane, Costs] | None = None
) -> Iterator[RaceEvent]:
    """Run the lanes that `settings.mode` asks for; RaceStart, LaneEvents in the order of the clocks, RaceEnd.

    costs: what live sizes are chosen by, where it is not what was measured here; a trace has those of its run, and with
    them its settings give its text again.

    Setting `stop` ends every lane before their next model call. Raises UserError for settings that this pair cannot
    serve. Closing the generator at any point leaves the models as they were.
    """
    enter(loaded.target.device)
    settings = resolved(loaded, settings)
    costs = {lane: _costs(loaded, name) for lane, name in drafters(settings).items()} | dict(costs or {})
    lanes = _lanes(loaded, settings, costs, stop)
    used = {need for name in drafters(settings).values() for need in find_drafter(name).needs}
    trace = Trace(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings=settings,
        target=loaded.target.info,
        draft=loaded.draft.info if loaded.draft and "draft" in used else None,
        heads={kind: head.info for kind, head in loaded.heads.items() if kind in used and head.info},
        machine=machine(loaded.target.device),
        costs={lane: costs[lane] for lane in drafters(settings)} if settings.auto_gamma else {},
    )
    yield RaceStart(trace=trace)
    kept: dict[Lane, list[int]] = {lane: [] for lane in lanes}
    failed: set[Lane] = set()
    for lane, event in interleave(lanes):
        if isinstance(event, Round):
            kept[lane] += [token.id for token in event.emitted]
        if isinstance(event, End) and event.reason == "error":
            failed.add(lane)
        yield LaneEvent(lane=lane, event=event)
    check = GreedyCheck(verdict="unchecked")
    if settings.temperature == 0 and len(kept) > 1 and not stop.is_set():
        check = _worst(loaded.target, loaded.tokens.encode(settings.prompt, settings.chat), kept, failed)
    yield RaceEnd(check=check)


def interleave(lanes: dict[Lane, Iterator[Event]]) -> Iterator[tuple[Lane, Event]]:
    """Advance the lane whose clock is behind until all have ended."""
    clocks: dict[Lane, float] = dict.fromkeys(lanes, 0.0)
    while clocks:
        lane = min(clocks, key=clocks.__getitem__)
        event = next(lanes[lane])
        clocks[lane] = getattr(event, "clock", 0.0)
        if event.type == "end":
            del clocks[lane]
        yield lane, event


def resolved(loaded: LoadedPair, settings: Settings) -> Settings:
    """The settings with the drafter that `BEST` stands for, and the pair that is loaded."""
    names = {"drafter": settings.drafter, "rival": settings.rival}
    best = {lane: best_drafter(loaded.has) for lane, name in names.items() if name == BEST}
    return settings.model_copy(update=best | {"pair": loaded.pair.id})


def drafters(settings: Settings) -> dict[Lane, str]:
    """Who drafts in which lane."""
    if settings.mode == "baseline":
        return {}
    return {"speculative": settings.drafter} | ({"rival": settings.rival} if settings.rival else {})


def _costs(loaded: LoadedPair, drafter: str) -> Costs:
    """What a drafter's rounds cost here."""
    needs = find_drafter(drafter).needs
    return loaded.costs_of(needs[0] if needs else "")


def _lanes(
    loaded: LoadedPair, settings: Settings, costs: Mapping[Lane, Costs], stop: threading.Event
) -> dict[Lane, Iterator[Event]]:
    target = loaded.target
    prompt = _prompt_ids(loaded, settings.prompt, settings.chat)
    capacity = min(target.max_length, len(prompt) + settings.max_tokens)
    request = Request(
        prompt=prompt,
        sampler=settings,
        max_tokens=settings.max_tokens,
        decode=loaded.tokens.decode,
        eos_ids=loaded.tokens.eos_ids,
        seed=settings.seed,
        record=settings.record,
        typical=settings.acceptance == "typical",
        stop=stop.is_set,
    )
    lanes: dict[Lane, Iterator[Event]] = {}
    if settings.mode != "speculative":
        lanes["baseline"] = baseline(target, request, capacity)
    for lane, name in drafters(settings).items():
        kind = _drafter(loaded, name, request.typical)
        own = costs[lane]
        job = DraftJob(
            target,
            loaded.draft,
            settings,
            settings.seed,
            capacity,
            settings.confidence,
            loaded.store,
            loaded.heads,
            own,
            TreeShape(settings.depth, settings.nodes, own.round if settings.auto_gamma else None),
        )
        lanes[lane] = speculative(target, kind.make(job), request, _policy(kind, settings, own), capacity, name)
    return lanes


def _prompt_ids(loaded: LoadedPair, prompt: str, chat: bool, called: str = "The prompt") -> list[int]:
    ids, target = loaded.tokens.encode(prompt, chat), loaded.target
    if len(ids) >= target.max_length:
        raise UserError(
            f"{called} has {len(ids):,} tokens, but {target.info.name} reads at most {target.max_length:,} "
            "with the answer. Shorten it."
        )
    return ids


def check_prompts(loaded: LoadedPair, prompts: Sequence[tuple[str, str]], chat: bool) -> None:
    """Look at (category, prompt) pairs before anything is run. Raises UserError with the one that is too long."""
    for number, (category, prompt) in enumerate(prompts, 1):
        start = " ".join(prompt.split())[:40]
        _prompt_ids(loaded, prompt, chat, f'Prompt {number} of {len(prompts)} ({category}, "{start}...")')


def _drafter(loaded: LoadedPair, name: str, typical: bool) -> Kind:
    """A drafter that this pair can use; raises UserError for any other."""
    kind = find_drafter(name)
    if typical and not kind.is_tree:
        raise UserError("Typical acceptance is for drafters of trees: choose EAGLE or Medusa, or exact acceptance.")
    for missing in kind.missing(loaded.has):
        raise UserError(NEEDS[missing])
    return kind


def _policy(kind: Kind, settings: Settings, costs: Costs) -> Policy:
    """How far each round drafts. A tree has its own bounds, and with an auto gamma ends where it no longer pays."""
    if kind.is_tree:
        return Fixed(settings.nodes, live=settings.auto_gamma)
    return Auto(costs) if settings.auto_gamma else Fixed(settings.gamma)


def _worst(
    target: LanguageModel, prompt: list[int], texts: dict[Lane, list[int]], failed: Collection[Lane]
) -> GreedyCheck:
    """Every lane's text compared with the first lane's; the worst verdict, and the shortest comparison of the best.

    A lane that failed has not ended its text: it is compared as far as it came.
    """
    first, *others = texts
    checks = []
    for lane in others:
        plain, other = texts[first], texts[lane]
        if {first, lane} & set(failed):
            common = min(len(plain), len(other))
            plain, other = plain[:common], other[:common]
        checks.append(compare_greedy(target, prompt, plain, other).model_copy(update={"lane": lane}))
    return min(checks, key=lambda check: (-_BADNESS.index(check.verdict), check.compared))


def compare_greedy(target: LanguageModel, prompt: list[int], plain: list[int], speculative: list[int]) -> GreedyCheck:
    """Compare greedy texts; where they part, look whether the target was in two minds.

    The gap is between the two tokens' logits after a fresh prefill of the text that both lanes share. Texts that only
    differ in where they end are different: both lanes have the same limits. Two texts without a token say nothing, and
    neither do logits that are no numbers: unchecked.
    """
    common = min(len(plain), len(speculative))
    at = next((i for i in range(common) if plain[i] != speculative[i]), None)
    if at is None and len(plain) != len(speculative):
        return GreedyCheck(verdict="different", compared=common, position=common)
    if at is None:
        return GreedyCheck(verdict="identical" if common else "unchecked", compared=common)
    context = [*prompt, *plain[:at]]
    runner = target.runner(len(context))
    for chunk in chunks(context[:-1]):
        runner.prefill(chunk)
    logits = runner.forward(context[-1:])[0]
    # Measured from the best logit: a wrong token that happens to lie close to another wrong one is no tie.
    gap = float(logits.max() - logits[[plain[at], speculative[at]]].min())
    if not math.isfinite(logits.max()):
        return GreedyCheck(verdict="unchecked", compared=common, position=at)
    tie = gap <= _NOISE[target.info.dtype]
    return GreedyCheck(verdict="near_tie" if tie else "different", compared=common, position=at, gap=gap)


def machine(device: torch.device) -> Machine:
    """This machine, as traces and benchmarks record it."""
    return Machine(
        device=device.type,
        processor=processor_name(device),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        packages={name: version(name) for name in _PACKAGES},
    )
