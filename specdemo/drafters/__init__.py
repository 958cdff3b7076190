"""Ways to propose tokens. A new one is a file beside these and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdemo.drafters.base import Drafter
from specdemo.drafters.draft_model import DraftModel
from specdemo.drafters.first_of import FirstOf
from specdemo.drafters.prompt_lookup import PromptLookup
from specdemo.drafters.retrieval import Retrieval
from specdemo.errors import UserError
from specdemo.models.datastore import Datastore
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class DraftJob:
    """What a drafter may be made from. `capacity` is the longest context of the run, in tokens; `store` holds text that
    the target wrote before; see DraftModel for `confidence`."""

    target: LanguageModel
    draft: LanguageModel | None
    sampler: SamplerSettings
    seed: int
    capacity: int
    confidence: float = 0.0
    store: Datastore | None = None


@dataclass(frozen=True)
class Kind:
    """One way to propose, as the registry lists it."""

    label: str
    hint: str
    make: Callable[[DraftJob], Drafter]
    needs_draft: bool = False
    needs_store: bool = False

    def usable(self, has_draft: bool, has_store: bool) -> bool:
        """Whether a pair that has or lacks these can use it."""
        return (has_draft or not self.needs_draft) and (has_store or not self.needs_store)


def _draft_model(job: DraftJob) -> DraftModel:
    return DraftModel(job.draft, job.target.vocab_size, job.sampler, job.seed, job.capacity, job.confidence)


def _lookup(job: DraftJob) -> PromptLookup:
    return PromptLookup(job.target.vocab_size, job.target.device)


def _retrieval(job: DraftJob) -> Retrieval:
    return Retrieval(job.store, job.target.vocab_size, job.target.device)


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
    "retrieval": Kind(
        "Retrieval",
        "copies from what the target answered to other prompts (He et al. 2023); no model at all",
        _retrieval,
        needs_store=True,
    ),
    "combined": Kind(
        "Lookup, retrieval, draft",
        "looks up what was said before, here or elsewhere, and lets the draft model write the rest",
        lambda job: FirstOf([_lookup(job), *([_retrieval(job)] if job.store else []), _draft_model(job)]),
        needs_draft=True,
    ),
}


def find_drafter(name: str) -> Kind:
    """Raises UserError for a drafter that is not in the registry."""
    if name not in DRAFTERS:
        raise UserError(f"There is no drafter {name!r}; choose one of: {', '.join(DRAFTERS)}.")
    return DRAFTERS[name]
