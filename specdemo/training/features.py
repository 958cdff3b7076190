"""The target's hidden states along the training text: what a head reads and a draft model never sees.

They are computed once and kept, because a pass of the target costs more than a training step of its head.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel
from specdemo.models.progress import Progress, silent
from specdemo.training.dataset import features_of
from specdemo.training.shards import Shard

_ROWS = 8  # conversations a pass
_LARGEST = 60_000.0  # float16 ends at 65,504, and some models have channels beyond


def taps_of(depth: int) -> tuple[int, ...]:
    """The depths whose states a head reads, of a target of so many layers: some early, some late, and the last.

    EAGLE-3 (Li et al. 2025, 2503.01840) takes three. A small target spreads what it knows of the tokens to come over
    more of its layers, and reading one more costs a matrix that is used once a token.
    """
    return tuple(sorted({max(1, round(depth * share)) for share in (0.14, 0.4, 0.7)} | {depth}))


def folder_of(data: Path, taps: tuple[int, ...]) -> Path:
    """Where the features of the shards in `data` lie."""
    return data / f"features-{'-'.join(map(str, taps))}"


def compute(model: LeanModel, data: Path, taps: tuple[int, ...], say: Progress = silent) -> Iterator[Path]:
    """Write [rows, length, taps * width] float16 for every shard that has none; yields each file."""
    folder = folder_of(data, taps)
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(data.glob("*.npz"))
    for index, file in enumerate(files):
        out = features_of(file, folder)
        if out.exists():
            continue
        ids = torch.tensor(Shard.load(file).ids.astype(np.int64), device=model.device)
        unfinished = out.with_suffix(".tmp")
        shape = (*ids.shape, len(taps) * model.width)
        states = np.lib.format.open_memmap(unfinished, "w+", np.float16, shape)
        for at in range(0, len(ids), _ROWS):
            done = (index + at / len(ids)) / len(files)
            say(f"the target's states along shard {index + 1} of {len(files)}", done)
            rows = ids[at : at + _ROWS]
            cache = KVCache(model, rows.shape[1], len(rows), taps)
            model.forward(rows, cache)
            states[at : at + _ROWS] = cache.features.float().clamp(-_LARGEST, _LARGEST).half().cpu().numpy()
        states.flush()
        os.replace(unfinished, out)
        yield out
