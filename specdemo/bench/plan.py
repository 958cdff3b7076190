"""What a benchmark is to run, checked before anything is loaded: nothing is lost to a mistake found at the end."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.bench import contenders as make
from specdemo.bench.batches import Batches, BatchTurn
from specdemo.bench.contenders import Contender
from specdemo.bench.report import ALL, Report
from specdemo.bench.steady import Measured
from specdemo.bench.suite import Prompt, Suite, apart
from specdemo.bench.surroundings import identity
from specdemo.drafters import DRAFTERS, find_drafter
from specdemo.errors import UserError
from specdemo.journal import Journal
from specdemo.longwork import Interrupted, Work
from specdemo.models.loading import LoadedPair
from specdemo.prompts import read_prompts
from specdemo.race import check_prompts
from specdemo.settings import Settings

_USUAL_GAMMA = 4  # where a fixed one is needed and none was asked for: peers, batches


@dataclass(frozen=True)
class Plan:
    """prompts: (category, prompt) pairs. drafters: names; empty means all that the pair can use. gammas: None is auto.
    settings: of every run. batch: texts at once, beside the single ones. peers, page: further contenders."""

    prompts: Sequence[Prompt]
    drafters: Sequence[str]
    gammas: Sequence[int | None]
    confidences: Sequence[float]
    settings: dict
    repeats: int = 1
    batch: int = 1
    peers: bool = False
    page: bool = False

    def __post_init__(self) -> None:
        for name in self.drafters:
            find_drafter(name)
        for (_, prompt), gamma, confidence in itertools.product(self.prompts, self.gammas, self.confidences):
            asked = {"confidence": confidence} | ({} if gamma is None else {"gamma": gamma})
            Settings.checked(**self.settings | asked, prompt=prompt)
        if self.batch > 1:
            for category, count in Counter(category for category, _ in self.prompts).items():
                if count < self.batch:
                    raise UserError(f"{category} has {count} prompts, too few for a batch of {self.batch}.")

    @property
    def fixed_gamma(self) -> int:
        """A gamma for what needs a fixed one."""
        return next((gamma for gamma in self.gammas if gamma), _USUAL_GAMMA)

    def contenders(self, loaded: LoadedPair) -> list[Contender]:
        """The baseline, this project's drafters, and who else was asked for."""
        usable = [name for name, kind in DRAFTERS.items() if not kind.missing(loaded.has)]
        ours = [
            make.speculative(loaded, name, gamma, confidence)
            for name in self.drafters or usable
            for gamma in dict.fromkeys(self.gammas)
            for confidence in (self.confidences if "draft" in DRAFTERS[name].needs else self.confidences[:1])
        ]
        found: list[Contender] = [make.Ours("baseline", loaded), *ours]
        if self.page:
            found += [
                make.OnThePage("baseline, on the page", "baseline", ours[-1]),
                make.OnThePage(f"{ours[-1].name}, on the page", "speculative", ours[-1]),
            ]
        if self.peers:
            from specdemo.bench.peers import peers

            found += apart(peers, loaded, self.fixed_gamma)
        return found

    def run(self, loaded: LoadedPair, work: Work, file: Path | None = None, resume: bool = False) -> Report | None:
        """Everything, or what there is when `work` is stopped (None: nothing that could be compared).

        file: the journal that keeps every run from the moment it is made; resume: go on with what it holds. Raises
        UserError for what this pair cannot do and for another plan's journal, before anything is run.
        """
        if self.batch > 1:
            if loaded.draft is None:
                raise UserError("A batch benchmark needs a draft model, and this pair has none.")
            for model in (loaded.target, loaded.draft):
                model.runner(1, batch=self.batch)
        check_prompts(loaded, self.prompts, Settings.checked(**self.settings, prompt="any").chat)
        contenders = self.contenders(loaded)
        journal = Journal(file, Measured | BatchTurn, self._head(loaded, contenders), resume) if file else None
        kept, keep = (journal.records, journal.append) if journal else ([], lambda record: None)
        of = lambda kind: [record for record in kept if isinstance(record, kind)]  # noqa: E731
        suite = Suite(loaded, contenders, self.prompts, self.settings, self.repeats, work, of(Measured), keep)
        batches = Batches(
            loaded, self.prompts, self.settings, self.batch, self.fixed_gamma, self.repeats, work, of(BatchTurn), keep
        )
        complete = True
        try:
            suite.run()
            if self.batch > 1:
                batches.run()
        except Interrupted:
            complete = False
        finally:
            if journal:
                journal.close()
        report = suite.report(complete)
        more = {"prompts_sha256": self.fingerprint(), "batches": batches.rows()}
        return report and report.model_copy(update=more)

    def _head(self, loaded: LoadedPair, contenders: Sequence[Contender]) -> dict[str, Any]:
        """What a journal must share to be continued."""
        return {
            "prompts": self.fingerprint(),
            "settings": self.settings,
            "contenders": [contender.name for contender in contenders],
            "batch size": self.batch,
        } | identity(loaded)

    def fingerprint(self) -> str:
        """sha256 of the prompts, so that results over the same ones can be told."""
        return hashlib.sha256(json.dumps(list(self.prompts)).encode()).hexdigest()


def choose_prompts(file: Path, categories: Sequence[str], per_category: int) -> list[Prompt]:
    """The first `per_category` prompts (0: all) of the wanted categories (none: all). Raises UserError."""
    prompts = read_prompts(file)
    known = list(dict.fromkeys(category for category, _ in prompts))
    if ALL in known:
        raise UserError(f'{file} has a category "{ALL}"; that is the name of the row over all of them. Rename it.')
    wanted = [name.strip() for text in categories for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError(f"There is no category {', '.join(unknown)} in {file}; it has {', '.join(known)}.")
    taken: Counter[str] = Counter()
    chosen = []
    for category, prompt in prompts:
        taken[category] += 1
        if category in (wanted or known) and (not per_category or taken[category] <= per_category):
            chosen.append((category, prompt))
    return chosen
