"""Distil a draft or a head from a target's text: many small steps on what the target said and what it nearly said.

The loss is KL to the target's top 16 (Hinton et al. 2015, 1503.02531), mixed with cross-entropy on its first choice
because greedy decoding only asks which token is first. Blocks are trained with Muon (Jordan et al. 2024), embedding
and norms with AdamW; the learning rate warms up, stays, then falls to zero (WSD, Hu et al. 2024, 2404.06395).
"""

from __future__ import annotations

import itertools
import operator
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specdemo.errors import UserError
from specdemo.longwork import Interrupted
from specdemo.models.progress import Progress, silent
from specdemo.training.dataset import Batch, Dataset, Learner
from specdemo.training.losses import distillation_loss
from specdemo.training.shards import ASSISTANT

RANKS = 10
"""Candidates of each position whose accuracy is measured: Medusa's tree is built from them."""

MAX_DEPTHS = 8

_BOUNDS = {
    "steps": (1, 10**9),
    "tokens_per_step": (1, 2**20),
    "muon_rate": (0, 1),
    "adam_rate": (0, 1),
    "cooldown": (0, 1),
    "first_choice": (0, 100),
    "depths": (1, MAX_DEPTHS),
    "deepen": (0, 1),
    "seed": (0, 2**63 - 1),
    "time_limit": (0, float("inf")),
}


@dataclass(frozen=True)
class Recipe:
    """How to train. Times in seconds; `time_limit` brings the end of the schedule forward if steps are too many.

    Raises UserError for what would not train.
    """

    steps: int = 10_000
    tokens_per_step: int = 2560
    muon_rate: float = 6e-3
    adam_rate: float = 5e-3
    weight_decay: float = 0.05
    warmup: float = 0.01  # share of the run
    cooldown: float = 0.35  # share of the run
    first_choice: float = 0.5  # weight of the target's first choice beside its distribution
    warm_weight: float = 0.7  # weight of answers that were not greedy
    user_weight: float = 0.2  # weight of user turns
    depths: int = 1  # how many tokens ahead a head learns to predict, one after the other
    deepen: float = 0.0  # share of the run after which it looks further than one token
    depth_weight: float = 0.8  # of each depth beside the one before
    clip: float = 1.0
    seed: int = 0
    time_limit: float = float("inf")
    report_every: int = 50  # steps
    validate_every: int = 250
    save_every: int = 250
    refresh_every: int = 200  # steps between looks for new shards

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:  # nan is not either
                raise UserError(f"{name.replace('_', ' ').capitalize()} is {value}: it should be {least} to {most}.")


@dataclass(frozen=True)
class Report:
    """State of a run: mean loss since the last report, or validation results where they are due."""

    step: int
    progress: float  # 0 to 1
    loss: float
    tokens_per_second: float
    accuracies: tuple[tuple[float, ...], ...] = ()
    """By depth and rank: how often that candidate was the target's first choice at held-out greedy answer positions."""
    alpha: float = 0.0  # mean sum_x min(p, q) there, at temperature 1, of the first depth

    @property
    def matches(self) -> tuple[float, ...]:
        """By depth: how often the first candidate was."""
        return tuple(ranks[0] for ranks in self.accuracies)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens a target pass if every depth is drafted as a chain and matches are independent."""
        return 1 + sum(itertools.accumulate(self.matches, operator.mul))


def rate(progress: float, recipe: Recipe) -> float:
    """Learning rate factor at `progress` (0 to 1): linear up, flat, linear down to zero."""
    up = (progress + 1e-3) / recipe.warmup if recipe.warmup else 1.0
    down = (1 - progress) / recipe.cooldown if recipe.cooldown else 1.0
    return max(0.0, min(1.0, up, down))


def learn_from(batch: Batch, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Target probabilities [n, TOP] (the first choice raised) and position weights [n] of a batch."""
    probs = batch.probs.clone()
    probs[:, 0] += recipe.first_choice * (batch.best == batch.top_ids[:, 0])
    assistant = torch.where(batch.greedy, 1.0, recipe.warm_weight)
    return probs / (1 + recipe.first_choice), torch.where(batch.role == ASSISTANT, assistant, recipe.user_weight)


class Trainer:
    """One training run that can be stopped at any step and resumed from its folder."""

    def __init__(self, student: Learner, data: Dataset, recipe: Recipe, folder: Path, dtype: torch.dtype) -> None:
        self.student, self.data, self.recipe, self.folder, self.dtype = student, data, recipe, folder, dtype
        self.step, self.seconds, self.best = 0, 0.0, -1.0  # best tokens per pass that validation has seen
        inner = student.inner
        outer = [p for p in student.parameters() if all(p is not q for q in inner)]
        decay = recipe.weight_decay
        muon = torch.optim.Muon(inner, recipe.muon_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(outer, recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.optimizers = [muon, adam]
        self.rates = [recipe.muon_rate, recipe.adam_rate]

    @property
    def progress(self) -> float:
        """How far the schedule is, by steps or by time, whichever is further."""
        return min(1.0, max(self.step / self.recipe.steps, self.seconds / self.recipe.time_limit))

    def run(self, report: Callable[[Report], None], say: Progress = silent) -> None:
        """Train to the end of the schedule, reporting and saving on the way, and saving where `say` interrupts it."""
        try:
            self._run(report, say)
        except Interrupted:
            self.save()
            raise

    def _run(self, report: Callable[[Report], None], say: Progress) -> None:
        recipe, losses, started, start_step = self.recipe, [], time.perf_counter(), self.step
        before = self.seconds
        while self.progress < 1:
            say(f"training, step {self.step}" + (f", loss {losses[-1]:.3f}" if losses else ""), self.progress)
            losses.append(self.train_step())
            self.seconds = before + time.perf_counter() - started
            due = {every: self.step % every == 0 for every in (recipe.report_every, recipe.validate_every)}
            if due[recipe.report_every] or due[recipe.validate_every] or self.progress >= 1:
                speed = (self.step - start_step) * recipe.tokens_per_step / (self.seconds - before)
                result = self.validate() if due[recipe.validate_every] or self.progress >= 1 else ()
                report(Report(self.step, self.progress, sum(losses) / len(losses), speed, *result))
                losses = []
            if self.step % recipe.save_every == 0 or self.progress >= 1:
                self.save()
            if self.step % recipe.refresh_every == 0:
                self.data.refresh()

    def train_step(self) -> float:
        """One optimiser step; the mean loss of its positions. What a step does depends on its number alone."""
        recipe = self.recipe
        for optimizer, base in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate(self.progress, recipe)
        generator = np.random.default_rng((recipe.seed, self.step))
        # Every fourth step joins two conversations: distances beyond one row are learned too.
        batch = self.data.draw(self.student, recipe.tokens_per_step, 2 if self.step % 4 == 3 else 1, generator)
        probs, weights = learn_from(batch, recipe)
        states, lines, scale = self._states(batch, recipe.depths if self.progress >= recipe.deepen else 1, generator)
        weights = weights[lines] * scale
        loss = distillation_loss(states, self.student.head, batch.top_ids[lines], probs[lines], weights / weights.sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def _states(self, batch: Batch, depths: int, generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """States [m, width] of all depths, the positions of the batch that they predict and their depths' weights, [m].

        Beyond the first depth a random half of the positions is learned from: the output layer is most of a step's
        cost, and the depths say much the same.
        """
        parts = []
        for depth, (states, lines) in enumerate(self.by_depth(batch, depths)):
            if depth:
                some = torch.as_tensor(generator.random(len(lines)) < 0.5, device=lines.device)
                states, lines = states[some], lines[some]
            scale = self.recipe.depth_weight**depth * (2 if depth else 1)
            parts.append((states, lines, torch.full((len(lines),), scale, device=lines.device)))
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def by_depth(self, batch: Batch, depths: int) -> list[tuple[Tensor, Tensor]]:
        """The student's states in this run's precision, see `Learner.states`."""
        device = self.student.head.device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            found = self.student.states(batch, depths, self.dtype)
        return [(states.to(self.dtype), lines) for states, lines in found]

    @torch.no_grad()
    def validate(self) -> tuple[tuple[tuple[float, ...], ...], float]:
        """(accuracies, alpha) on held-out greedy answers, see Report."""
        depths, ranks = self.recipe.depths, min(RANKS, len(self.student.head))
        hits, counts, alpha = torch.zeros(depths, ranks), [0] * depths, 0.0
        for batch in self.data.validation(self.student):
            keep = (batch.role == ASSISTANT) & batch.greedy
            for depth, (states, lines) in enumerate(self.by_depth(batch, depths)):
                states, lines = states[keep[lines]], lines[keep[lines]]
                logits = (states @ self.student.head.to(self.dtype).T).float()
                hits[depth] += (logits.topk(ranks).indices == batch.best[lines, None]).sum(0).cpu()
                counts[depth] += len(lines)
                if depth == 0:
                    q = logits.softmax(-1).gather(1, batch.top_ids[lines])
                    alpha += torch.minimum(q, batch.probs[lines]).sum().item()
        shares = [[hit / max(n, 1) for hit in row] for row, n in zip(hits.tolist(), counts, strict=True)]
        return tuple(map(tuple, shares)), alpha / max(counts[0], 1)

    def save(self) -> None:
        """Write the run's whole state, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "student": self.student.state_dict(),
            "vocab_ids": self.student.vocab_ids,
            "config": self.student.description,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "recipe": asdict(self.recipe),
        }
        torch.save(state, self.folder / "state.tmp")
        os.replace(self.folder / "state.tmp", self.folder / "state.pt")

    def resume(self) -> bool:
        """Continue from the folder's last saved state; False where there is none. Raises UserError for a state that is
        of another kind or shape."""
        file = self.folder / "state.pt"
        if not file.exists():
            return False
        state = torch.load(file, weights_only=True)
        try:
            self.student.load_state_dict(state["student"])
        except RuntimeError as error:
            raise UserError(
                f"The run in {self.folder} is of another kind or shape than what is asked for. Resume it with its own "
                "options, or choose another folder with --work."
            ) from error
        self.step, self.seconds, self.best = state["step"], state["seconds"], state.get("best", -1.0)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return True
