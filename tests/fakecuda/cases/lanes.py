"""Whole lanes over tiny models: what the CPU writes, and what the pretended GPU does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Fixed
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.events import Event, Round
from specdemo.models.heads import Head
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.settings import SamplerSettings
from tests.heads import heads_for
from tests.tiny import STORE, Tiny

VOCAB = 8
PROMPT = [0, 1, 2, 0, 1, 2, 1, 0, 1, 2]
TOKENS = 24
BASELINE = "baseline"
LANES = (BASELINE, *DRAFTERS)

SAMPLERS = {
    "greedy": SamplerSettings(temperature=0),
    "temperature": SamplerSettings(temperature=0.8),
    "top_p": SamplerSettings(temperature=1.0, top_p=0.8),
    "top_k and min_p": SamplerSettings(temperature=1.0, top_k=4, min_p=0.05),
}


@dataclass(frozen=True)
class Models:
    """A target, a draft model and heads on one device, made anew: their recordings are theirs."""

    device: str

    @cached_property
    def target(self) -> LeanLanguageModel:
        return Tiny(VOCAB, 1, max_length=256, device=self.device).lean

    @cached_property
    def draft(self) -> LeanLanguageModel:
        return Tiny(VOCAB, 2, layers=1, max_length=256, device=self.device).lean

    @cached_property
    def heads(self) -> dict[str, Head]:
        return heads_for(self.target)

    def events(self, lane: str, sampler: SamplerSettings, record: bool = False, seed: int = 3) -> Iterator[Event]:
        """One run of a lane: chains of up to three drafts, trees of up to six nodes."""
        capacity = len(PROMPT) + TOKENS
        request = Request(PROMPT, sampler, TOKENS, decode=str, seed=seed, record=record)
        if lane == BASELINE:
            return baseline(self.target, request, capacity)
        kind = DRAFTERS[lane]
        draft, heads = self.draft, self.heads if "trees" in kind.needs else {}
        job = DraftJob(self.target, draft, sampler, seed, capacity, 0.0, STORE, heads, shape=TreeShape(3, 6))
        return speculative(self.target, kind.make(job), request, Fixed(6 if kind.is_tree else 3), capacity)

    def text(self, lane: str, sampler: SamplerSettings, record: bool = False) -> list[int]:
        """Ids that a run emits."""
        rounds = [event for event in self.events(lane, sampler, record) if isinstance(event, Round)]
        return [token.id for told in rounds for token in told.emitted]


CPU = Models("cpu")


@cache
def expected(lane: str, sampler: str, record: bool = False) -> list[int]:
    """The CPU's text."""
    text = CPU.text(lane, SAMPLERS[sampler], record)
    assert len(text) == TOKENS
    return text


def in_a_thread(work: Callable[[], object]) -> object:
    """What the work gives, or the error that it raises, in another thread."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 (whatever it is, the test wants to see it)
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]
