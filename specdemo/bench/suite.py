"""Runs a benchmark: every contender on every prompt, in turn, again and again.

The order is A B C A B C and not A A B B C C, so that a machine that slows down or speeds up on the way does so for
everybody, and speedups are taken within a repeat.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import torch

from specdemo.bench.contenders import Contender, Written
from specdemo.bench.report import BatchRow, Report, Row, figures, overall
from specdemo.bench.roofline import Roofline, roofline
from specdemo.decoding.batch import BatchRequest, BatchRun, decode_batch
from specdemo.events import GreedyVerdict
from specdemo.metrics import LaneMetrics, RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.race import compare_greedy, machine
from specdemo.settings import Settings

T = TypeVar("T")
Prompt = tuple[str, str]
"""(category, prompt)."""


@dataclass
class Suite:
    """What to run. contenders: the first is the baseline that the others are compared with. repeats: of everything.

    `say` hears what is being run, and how far that is (0 to 1).
    """

    loaded: LoadedPair
    contenders: Sequence[Contender]
    prompts: Sequence[Prompt]
    settings: dict
    repeats: int
    say: Callable[[str, float], None] = lambda message, fraction: None
    _runs: dict[tuple[str, str], list[list[LaneMetrics]]] = field(default_factory=lambda: defaultdict(list))
    _texts: dict[tuple[str, str], Counter[GreedyVerdict]] = field(default_factory=lambda: defaultdict(Counter))

    def run(self) -> Report:
        """Everything, warmed up first. Raises UserError for prompts or settings that the pair cannot serve."""
        for contender in self.contenders:
            self.say(f"warming up: {contender.name}", 0.0)
            apart(contender.write, self._settings(self.prompts[0][1], max_tokens=8))
        total, done = self.repeats * len(self.prompts), 0
        for repeat in range(self.repeats):
            for category, prompt in self.prompts:
                self.say(f"repeat {repeat + 1} of {self.repeats}, {category}", done / total)
                self._run_prompt(repeat, category, prompt)
                done += 1
        return self._report()

    def _run_prompt(self, repeat: int, category: str, prompt: str) -> None:
        plain: Written | None = None
        for contender in self.contenders:
            written = apart(contender.write, self._settings(prompt))
            runs = self._runs[contender.name, category]
            if len(runs) <= repeat:
                runs.append([])
            runs[repeat].append(written.metrics)
            if plain is None:
                plain = written
            elif repeat == 0 and self.settings.get("temperature", 0) == 0:
                self._texts[contender.name, category][self._compare(prompt, plain, written)] += 1

    def _compare(self, prompt: str, plain: Written, written: Written) -> GreedyVerdict:
        ids = self.loaded.tokens.encode(prompt, self._settings(prompt).chat)
        return apart(compare_greedy, self.loaded.target, ids, plain.ids, written.ids).verdict

    def _settings(self, prompt: str, **more: int) -> Settings:
        return Settings.checked(**self.settings | more, prompt=prompt)

    def _report(self) -> Report:
        categories, rows = list(dict.fromkeys(category for category, _ in self.prompts)), []
        for contender in self.contenders:
            own = []
            for category in categories:
                base = self._runs[self.contenders[0].name, category]
                runs = self._runs[contender.name, category]
                numbers = figures(runs, base)
                undrafted = LaneMetrics.pooled(m for repeat in runs for m in repeat).undrafted
                texts = dict(self._texts[contender.name, category])
                drafter = getattr(contender, "drafter", None) or ""
                own.append(
                    Row(
                        contender=contender.name,
                        category=category,
                        figures=numbers,
                        drafter=drafter,
                        texts=texts,
                        undrafted=dict(undrafted),
                    )
                )
            rows += [*own, overall(own)]
        return Report(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=machine(self.loaded.target.device),
            commit=commit(),
            target=self.loaded.target.info,
            draft=self.loaded.draft.info if self.loaded.draft else None,
            settings=self.settings,
            prompts=dict(Counter(category for category, _ in self.prompts)),
            repeats=self.repeats,
            costs=self.loaded.costs,
            steps=dict(self.loaded.steps),
            rows=rows,
            peak_memory=peak_memory(self.loaded.target.device),  # before the roofline's own buffer
            roofline=self._roofline(),
        )

    def _roofline(self) -> Roofline | None:
        name = self.contenders[0].name
        runs = [run for (own, _), repeats in self._runs.items() if own == name for repeat in repeats for run in repeat]
        plain = LaneMetrics.pooled(runs)
        step = RaceMetrics(baseline=plain).target_step
        if step is None:
            return None
        chat = self._settings(self.prompts[0][1]).chat
        lengths = [len(self.loaded.tokens.encode(prompt, chat)) for _, prompt in self.prompts]
        context = sum(lengths) / len(lengths) + plain.tokens / len(runs) / 2
        try:
            return apart(roofline, self.loaded.target, context, step)
        except RuntimeError:  # no room for its buffer beside the models: the other figures stand
            return None


def run_batches(
    loaded: LoadedPair, prompts: Sequence[Prompt], settings: dict, batch: int, gamma: int, repeats: int
) -> list[BatchRow]:
    """Each category's first prompts as one batch, plain and with drafts in turn; medians are over repeats."""
    rows = []
    for category in dict.fromkeys(category for category, _ in prompts):
        texts = [prompt for own, prompt in prompts if own == category][:batch]
        one = Settings.checked(**settings, prompt=texts[0])
        ids = [loaded.tokens.encode(text, one.chat) for text in texts]
        request = BatchRequest(ids, one, one.max_tokens, loaded.tokens.eos_ids, one.seed)
        pairs: list[tuple[BatchRun, BatchRun]] = []
        for _ in range(repeats + 1):  # the first only warms up
            plain = apart(decode_batch, loaded.target, request)
            pairs.append((plain, apart(decode_batch, loaded.target, request, loaded.draft, gamma)))
        ranked = sorted(pairs[1:], key=lambda pair: pair[1].tokens_per_second / pair[0].tokens_per_second)
        plain, drafted = ranked[len(ranked) // 2]
        rows.append(
            BatchRow(
                category=category,
                batch=batch,
                gamma=gamma,
                plain_rate=plain.tokens_per_second,
                speculative_rate=drafted.tokens_per_second,
                speedup=drafted.tokens_per_second / plain.tokens_per_second,
                tokens_per_pass=sum(map(len, drafted.texts)) / drafted.passes / batch,
                alpha=drafted.accepted / max(drafted.tested, 1),
            )
        )
    return rows


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Do it in a thread that ends, as the page does: a thread that has computed and lives on slows down all others
    (see Host)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *arguments).result()


def commit() -> str:
    """The commit that is checked out here, with a plus behind it where files have changed since; empty without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def peak_memory(device: torch.device) -> int:
    """Bytes held at most, on the GPU or else by this process; 0 where the system does not say (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
