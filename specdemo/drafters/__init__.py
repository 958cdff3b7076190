"""Ways to propose tokens. A new one is a file beside these and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdemo.drafters.base import Drafter
from specdemo.drafters.draft_model import DraftModel
from specdemo.drafters.prompt_lookup import PromptLookup
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class DraftJob:
    """What a drafter may be made from. `capacity` is the longest context of the run, in tokens."""

    target: LanguageModel
    draft: LanguageModel | None
    sampler: SamplerSettings
    seed: int
    capacity: int


@dataclass(frozen=True)
class Kind:
    """One way to propose, as the registry lists it."""

    label: str
    hint: str
    make: Callable[[DraftJob], Drafter]
    needs_draft: bool = False


DRAFTERS: dict[str, Kind] = {
    "draft-model": Kind(
        "Draft model",
        "a small language model writes ahead (Chen et al. 2023)",
        lambda job: DraftModel(job.draft, job.target.vocab_size, job.sampler, job.seed, job.capacity),
        needs_draft=True,
    ),
    "prompt-lookup": Kind(
        "Prompt lookup",
        "repeats what followed the same words before; no model at all",
        lambda job: PromptLookup(job.target.vocab_size, job.target.device),
    ),
}
