"""Ways to propose tokens. A new one is a file beside these and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from specdemo.drafters.base import Drafter
from specdemo.drafters.best_of import BestOf
from specdemo.drafters.draft_model import DraftModel
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.drafters.eagle import Eagle
from specdemo.drafters.early_exit import EarlyExit
from specdemo.drafters.first_of import FirstOf
from specdemo.drafters.medusa import Medusa
from specdemo.drafters.prompt_lookup import PromptLookup
from specdemo.drafters.retrieval import Retrieval
from specdemo.errors import UserError
from specdemo.models.costs import TEXTBOOK, Costs
from specdemo.models.datastore import Datastore
from specdemo.models.heads import Head
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class DraftJob:
    """What a drafter may be made from. `capacity` is the longest context of the run, in tokens; `store` holds text that
    the target wrote before; `heads` by kind; `costs`: of a round, its draft step in it; `shape` bounds trees;
    see DraftModel for `confidence`."""

    target: LanguageModel
    draft: LanguageModel | None
    sampler: SamplerSettings
    seed: int
    capacity: int
    confidence: float = 0.0
    store: Datastore | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    costs: Costs = TEXTBOOK
    shape: TreeShape = field(default_factory=TreeShape)


NEEDS = {
    "draft": "This pair has no draft model. Choose prompt lookup, or start with --draft.",
    "store": "Nobody has kept text of this target to retrieve from. Choose another drafter.",
    "eagle": "This target has no EAGLE head. Train one (train eagle) or convert one, and start with --head FOLDER.",
    "medusa": "This target has no Medusa heads. Make them (python -m specdemo train medusa); start with --head FOLDER.",
    "trees": "This target cannot verify trees: its attention takes no mask from outside. Choose a drafter of chains.",
    "layers": "This target runs through transformers, whose layers cannot be left early. Choose another drafter.",
}
"""What a drafter may need of a pair, and what to say where it is missing."""


@dataclass(frozen=True)
class Kind:
    """One way to propose, as the registry lists it. `needs` names parts of a pair, the one that takes a draft step's
    time first; `is_tree`: it drafts trees, bounded by depth and nodes instead of gamma."""

    label: str
    hint: str
    make: Callable[[DraftJob], Drafter]
    needs: tuple[str, ...] = ()
    is_tree: bool = False

    def missing(self, has: Collection[str]) -> list[str]:
        """What a pair that has certain parts lacks for it."""
        return [need for need in self.needs if need not in has]


def _draft_model(job: DraftJob) -> DraftModel:
    return DraftModel(job.draft, job.target.vocab_size, job.sampler, job.seed, job.capacity, job.confidence)


def _lookup(job: DraftJob) -> PromptLookup:
    return PromptLookup(job.target.vocab_size, job.target.device)


def _retrieval(job: DraftJob) -> Retrieval:
    return Retrieval(job.store, job.target.vocab_size, job.target.device)


def _lookups(job: DraftJob) -> list[Drafter]:
    return [_lookup(job), *([_retrieval(job)] if job.store else [])]


def _eagle(job: DraftJob) -> Eagle:
    return Eagle(job.heads["eagle"], job.target.vocab_size, job.shape)


DRAFTERS: dict[str, Kind] = {
    "draft-model": Kind(
        "Draft model",
        "a small language model writes ahead (Chen et al. 2023)",
        _draft_model,
        needs=("draft",),
    ),
    "eagle": Kind(
        "EAGLE",
        "one layer continues the target's own hidden states and drafts a tree (Li et al. 2024)",
        _eagle,
        needs=("eagle", "trees"),
        is_tree=True,
    ),
    "medusa": Kind(
        "Medusa",
        "heads guess the next tokens side by side and draft a tree (Cai et al. 2024)",
        lambda job: Medusa(job.heads["medusa"], job.target.vocab_size, job.shape),
        needs=("medusa", "trees"),
        is_tree=True,
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
        needs=("store",),
    ),
    "early-exit": Kind(
        "Early exit",
        "the target's own first layers draft, untrained: why heads are trained (Elhoushi et al. 2024)",
        lambda job: EarlyExit(job.sampler, job.seed, job.target.device),
        needs=("layers",),
    ),
    "combined": Kind(
        "Lookup, retrieval, draft",
        "looks up what was said before, here or elsewhere, and lets the draft model write the rest",
        lambda job: FirstOf([*_lookups(job), _draft_model(job)]),
        needs=("draft",),
    ),
    "combined-eagle": Kind(
        "Lookup, retrieval, EAGLE",
        "whichever of the three gives most for its time in this text",
        lambda job: BestOf(_lookups(job), _eagle(job), job.costs),
        needs=("eagle", "trees"),
        is_tree=True,
    ),
}


_FASTEST_FIRST = ("combined-eagle", "eagle", "combined", "medusa", "draft-model", "prompt-lookup")
"""As measured with the default pair, sizes chosen live; the last one needs nothing."""


def best_drafter(has: Collection[str]) -> str:
    """The drafter that a pair with certain parts is fastest with."""
    return next(name for name in _FASTEST_FIRST if not DRAFTERS[name].missing(has))


def find_drafter(name: str) -> Kind:
    """Raises UserError for a drafter that is not in the registry."""
    if name not in DRAFTERS:
        raise UserError(f"There is no drafter {name!r}; choose one of: {', '.join(DRAFTERS)}.")
    return DRAFTERS[name]
