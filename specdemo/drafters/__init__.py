"""Ways to propose tokens. A new one is a file beside these and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdemo.drafters.base import Drafter
from specdemo.drafters.draft_model import DraftModel
from specdemo.drafters.lookup_then_draft import LookupThenDraft
from specdemo.drafters.prompt_lookup import PromptLookup
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class DraftJob:
    """What a drafter may be made from. `capacity` is the longest context of the run, in tokens; see DraftModel for
    `confidence`."""

    target: LanguageModel
    draft: LanguageModel | None
    sampler: SamplerSettings
    seed: int
    capacity: int
    confidence: float = 0.0


@dataclass(frozen=True)
class Kind:
    """One way to propose, as the registry lists it."""

    label: str
    hint: str
    make: Callable[[DraftJob], Drafter]
    needs_draft: bool = False


def _draft_model(job: DraftJob) -> DraftModel:
    return DraftModel(job.draft, job.target.vocab_size, job.sampler, job.seed, job.capacity, job.confidence)


def _lookup(job: DraftJob) -> PromptLookup:
    return PromptLookup(job.target.vocab_size, job.target.device)


DRAFTERS: dict[str, Kind] = {
    "draft-model": Kind(
        "Draft model",
        "a small language model writes ahead (Chen et al. 2023)",
        _draft_model,
        needs_draft=True,
    ),
    "prompt-lookup": Kind(
        "Prompt lookup",
        "repeats what followed the same words before; no model at all",
        _lookup,
    ),
    "lookup-then-draft": Kind(
        "Lookup, then draft",
        "repeats what followed the same words before, lets the draft model write the rest",
        lambda job: LookupThenDraft(_lookup(job), _draft_model(job)),
        needs_draft=True,
    ),
}
