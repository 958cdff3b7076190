"""Several texts at once: each category's first prompts as one batch, plain and with drafts in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from specdemo.bench.report import BatchRow
from specdemo.bench.suite import Prompt, apart
from specdemo.decoding.batch import BatchRequest, decode_batch
from specdemo.longwork import Work
from specdemo.models.loading import LoadedPair
from specdemo.settings import Settings


class BatchTurn(BaseModel):
    """A batch decoded plainly and then with drafts, in tokens/s of all its texts: a line of a benchmark's journal."""

    model_config = ConfigDict(extra="forbid")

    category: str
    turn: int
    plain_rate: float
    speculative_rate: float
    tokens_per_pass: float
    alpha: float

    @property
    def speedup(self) -> float:
        return self.speculative_rate / self.plain_rate


@dataclass
class Batches:
    """What to run, as in `Suite`. gamma: drafts a round."""

    loaded: LoadedPair
    prompts: Sequence[Prompt]
    settings: dict
    batch: int
    gamma: int
    repeats: int
    work: Work = field(default_factory=Work)
    kept: Sequence[BatchTurn] = ()
    keep: Callable[[BatchTurn], None] = lambda turn: None

    def __post_init__(self) -> None:
        self.turns = {(turn.category, turn.turn): turn for turn in self.kept if turn.turn < self.repeats}

    def run(self) -> None:
        """Every turn that was not kept. Raises Interrupted where `work` was stopped, UserError for batches too long."""
        categories = list(dict.fromkeys(category for category, _ in self.prompts))
        every = [(category, turn) for category in categories for turn in range(self.repeats)]
        warm = None
        for done, (category, turn) in enumerate(every):
            if (category, turn) in self.turns:
                continue
            self.work(f"batch of {self.batch}, repeat {turn + 1} of {self.repeats}, {category}", done / len(every))
            if warm != category:  # another batch has other lengths
                self._measured(category, turn)
                warm = category
            measured = self._measured(category, turn)
            self.keep(measured)
            self.turns[category, turn] = measured

    def _measured(self, category: str, turn: int) -> BatchTurn:
        texts = [prompt for own, prompt in self.prompts if own == category][: self.batch]
        one = Settings.checked(**self.settings, prompt=texts[0])
        ids = [self.loaded.tokens.encode(text, one.chat) for text in texts]
        request = BatchRequest(ids, one, one.max_tokens, self.loaded.tokens.eos_ids, one.seed)
        plain = apart(decode_batch, self.loaded.target, request)
        drafted = apart(decode_batch, self.loaded.target, request, self.loaded.draft, self.gamma)
        return BatchTurn(
            category=category,
            turn=turn,
            plain_rate=plain.tokens_per_second,
            speculative_rate=drafted.tokens_per_second,
            tokens_per_pass=sum(map(len, drafted.texts)) / drafted.passes / self.batch,
            alpha=drafted.accepted / max(drafted.tested, 1),
        )

    def rows(self) -> list[BatchRow]:
        """For every category the turn of the median speed-up, and how far the others' lie apart."""
        rows = []
        for category in dict.fromkeys(category for category, _ in self.turns):
            turns = [turn for turn in self.turns.values() if turn.category == category]
            speedups = [turn.speedup for turn in turns]
            middle = next(turn for turn in turns if turn.speedup == statistics.median_high(speedups))
            rows.append(
                BatchRow(
                    batch=self.batch,
                    gamma=self.gamma,
                    speedup=middle.speedup,
                    speedup_low=min(speedups),
                    speedup_high=max(speedups),
                    **middle.model_dump(exclude={"turn"}),
                )
            )
        return rows
