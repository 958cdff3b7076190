"""Shards in memory, drawn as training batches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specdemo.training.shards import ASSISTANT, FORCED, USER, Shard

HOLD_OUT = 24  # one row in so many is kept for validation
_WEIGHTS = {"asked": 2.0, "generated": 1.0, "labelled": 0.1}
"""How often a token is drawn, by where its file's name says that it comes from: whole questions are what a draft will
meet, and text whose temperature nobody recorded comes last."""


@dataclass(frozen=True)
class Batch:
    """Text and the teacher's predictions at the `n` positions that are learned from.

    ids [rows, length] target ids; where [rows, length - 1] bool, true where the *next* token was sampled; top_ids and
    probs [n, TOP]: draft ids and probabilities of those next tokens (probability 0 outside the draft's vocabulary);
    best [n]: draft id of the teacher's most likely token, the draft's vocabulary size where it is outside;
    role [n]; greedy [n] bool, whether the assistant was greedy in that row. features [rows, length, taps * width]: the
    target's states at every token, for heads; None where nobody asked for them.
    """

    ids: Tensor
    where: Tensor
    top_ids: Tensor
    probs: Tensor
    best: Tensor
    role: Tensor
    greedy: Tensor
    features: Tensor | None = None


class Learner(Protocol):
    """What can be trained: a draft model or a head, an nn.Module. Draft tokens are numbered by `vocab_ids`."""

    vocab_ids: Tensor  # [vocab], the target's token of every draft token
    draft_ids: Tensor  # [target vocab], the reverse; vocab where a token is outside
    head: Tensor  # [vocab, width], the output layer
    longest: int  # tokens that a row may have
    inner: list[torch.nn.Parameter]  # matrices for Muon
    description: dict  # what config.json says of its shape

    def exported(self) -> dict[str, Tensor]:
        """Its weights by the names under which they are loaded."""
        ...

    def states(self, batch: Batch, depths: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """For each of `depths` (or as many as there are) the normed states [m, width] that predict, and which of the
        batch's n positions they predict, [m]."""
        ...


@dataclass(frozen=True)
class _Row:
    shard: Shard
    index: int
    first: int  # line of the row's first sampled position in top_ids
    features: np.ndarray | None  # of the whole shard

    @property
    def length(self) -> int:
        return self.shard.ids.shape[1]


class Dataset:
    """All rows found in a folder; `refresh` picks up shards written since.

    features: a folder that holds the target's states for shards, see features.py; shards without them wait.
    """

    def __init__(self, folder: Path, features: Path | None = None) -> None:
        self.folder, self.features = folder, features
        self.train: dict[tuple[int, str], list[_Row]] = {}  # by (row length, source), a source being a key of _WEIGHTS
        self.held_out: list[_Row] = []
        self._seen: set[str] = set()
        self._validation: list[_Row] = []
        self.refresh()

    def refresh(self) -> int:
        """Load new shards; returns how many there were."""
        new = [file for file in sorted(self.folder.glob("*.npz")) if file.name not in self._seen]
        if self.features:
            new = [file for file in new if features_of(file, self.features).exists()]
        for file in new:
            self._seen.add(file.name)
            shard = Shard.load(file)
            source = file.name.split("-")[0]
            # Far larger than the text: they stay on the disk, and the system keeps in memory what it can.
            states = np.load(features_of(file, self.features), mmap_mode="r") if self.features else None
            ends = (shard.role > FORCED).sum(1).cumsum()
            for index, first in enumerate([0, *ends[:-1].tolist()]):
                row = _Row(shard, index, first, states)
                # Rows of unknown temperature only train: validation is on the text the draft will meet.
                known = not np.isnan(shard.temperature[index])
                if known and index % HOLD_OUT == 0:
                    self.held_out.append(row)
                else:
                    self.train.setdefault((row.length, source), []).append(row)
        return len(new)

    def facts(self) -> dict[str, int]:
        """How much there is: shards, rows, and training tokens by speaker."""
        rows = [row for group in self.train.values() for row in group]
        roles = np.stack([np.bincount(row.shard.role[row.index], minlength=3) for row in rows]).sum(0)
        sizes = {"assistant_tokens": int(roles[ASSISTANT]), "user_tokens": int(roles[USER])}
        return {"shards": len(self._seen), "rows": len(rows), "held_out_rows": len(self.held_out)} | sizes

    def counts(self, vocab: int) -> np.ndarray:
        """How often each target token occurs in the training rows, [vocab]; the assistant's count four times."""
        total = np.zeros(vocab)
        for group in self.train.values():
            for row in group:
                ids, role = row.shard.ids[row.index], row.shard.role[row.index]
                total += np.bincount(ids, minlength=vocab) + 3 * np.bincount(ids[role == ASSISTANT], minlength=vocab)
        return total

    def some_features(self, count: int) -> Tensor:
        """States of about `count` positions, [n, taps * width], of one shard; the first of a row are unlike others."""
        row = next(iter(self.train.values()))[0]
        states = row.features[: max(1, count // row.length), 8:]
        return torch.tensor(np.asarray(states)).flatten(0, 1)

    def draw(self, student: Learner, tokens: int, join: int, generator: np.random.Generator) -> Batch:
        """About `tokens` tokens of random training rows of one kind, `join` conversations to a sequence."""
        kinds = sorted(self.train)
        share = np.array([len(self.train[kind]) * kind[0] * _WEIGHTS.get(kind[1], 1.0) for kind in kinds])
        rows = self.train[kinds[generator.choice(len(kinds), p=share / share.sum())]]
        join = max(1, min(join, student.longest // rows[0].length))
        count = max(1, tokens // (rows[0].length * join)) * join
        return _collate([rows[i] for i in generator.integers(len(rows), size=count)], student, join)

    def validation(self, student: Learner, rows: int = 96, at_once: int = 8) -> list[Batch]:
        """Held-out rows of every length and source as batches; the same ones for as long as this dataset lives."""
        if len(self._validation) < rows:
            spread = self.held_out[:: max(1, len(self.held_out) // rows)][:rows]
            self._validation = sorted(spread, key=lambda row: row.length)
        groups = [list(group) for _, group in itertools.groupby(self._validation, key=lambda row: row.length)]
        parts = [group[i : i + at_once] for group in groups for i in range(0, len(group), at_once)]
        return [_collate(part, student, 1) for part in parts]


def _collate(rows: list[_Row], student: Learner, join: int) -> Batch:
    on_device = lambda array: torch.tensor(array, device=student.draft_ids.device)  # noqa: E731
    ids = on_device(np.stack([row.shard.ids[row.index] for row in rows]).astype(np.int64))
    role = on_device(np.stack([row.shard.role[row.index] for row in rows]).astype(np.int64))
    greedy = on_device([bool(row.shard.temperature[row.index] < 0.1) for row in rows])[:, None].expand_as(role)
    lines = [slice(row.first, row.first + int((row.shard.role[row.index] > FORCED).sum())) for row in rows]
    top_ids = np.concatenate([row.shard.top_ids[part] for row, part in zip(rows, lines, strict=True)])
    logprobs = np.concatenate([row.shard.top_logprobs[part] for row, part in zip(rows, lines, strict=True)])
    ids, role, greedy = (x.reshape(len(rows) // join, -1) for x in (ids, role, greedy))
    sampled = role > FORCED  # never at position 0, so shifting by one loses nothing
    draft_ids = student.draft_ids[on_device(top_ids.astype(np.int64))]
    known = draft_ids < len(student.vocab_ids)
    probs = on_device(logprobs.astype(np.float32)).exp() * known
    probs = probs / probs.sum(-1, keepdim=True).clamp_min(1.0)  # float16 may round a sum above 1
    states = None
    if rows[0].features is not None:
        states = on_device(np.stack([row.features[row.index] for row in rows])).reshape(*ids.shape, -1)
    return Batch(ids, sampled[:, 1:], draft_ids * known, probs, draft_ids[:, 0], role[sampled], greedy[sampled], states)


def features_of(shard: Path, folder: Path) -> Path:
    """The file of a shard's features."""
    return folder / f"{shard.stem}.npy"
