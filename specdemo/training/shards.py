"""The training data's format: conversations and what the target predicted in them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from torch import Tensor

from specdemo.errors import UserError

TOP = 16  # predictions stored for every sampled token
FORCED, ASSISTANT, USER = 0, 1, 2  # roles: template and prompts; sampled as the assistant; sampled as the user


@dataclass(frozen=True)
class Shard:
    """Some rows of text.

    `top_ids` and `top_logprobs` hold one line for each position whose role is not FORCED, row by row: the
    target's most likely tokens *for* that position (temperature 1), most likely first.
    """

    ids: np.ndarray  # uint16 or uint32 [rows, length]
    role: np.ndarray  # uint8 [rows, length]
    top_ids: np.ndarray  # uint16 or uint32 [sampled, TOP]
    top_logprobs: np.ndarray  # float16 [sampled, TOP]
    category: np.ndarray  # uint8 [rows], index into seeds.CATEGORIES, or one past its end where unknown
    temperature: np.ndarray  # float16 [rows], of the assistant; nan where unknown

    @classmethod
    def of(
        cls, ids: Tensor, role: Tensor, top_ids: Tensor, top_logprobs: Tensor, category: list, temperature: list
    ) -> Shard:
        """Pack tensors; top_ids and top_logprobs come as [rows, length, TOP] and keep sampled positions only."""
        sampled = role > 0
        return cls(
            _small(ids),
            role.numpy().astype(np.uint8),
            _small(top_ids[sampled]),
            top_logprobs[sampled].numpy(),
            np.array(category, np.uint8),
            np.array(temperature, np.float16),
        )

    def save(self, file: Path) -> None:
        """Write the whole shard or nothing: a killed run leaves no half file behind."""
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".tmp")
        with unfinished.open("wb") as stream:
            np.savez(stream, **vars(self))
        os.replace(unfinished, file)

    @classmethod
    def load(cls, file: Path) -> Shard:
        """Read a shard written by `save`. Raises UserError for a file of another kind."""
        try:
            return cls(**read_arrays(file))
        except TypeError as error:
            raise UserError(f"{file} is no shard of training text. Move it elsewhere.") from error


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file by their names. Raises UserError for a file that is not there or of another kind."""
    try:
        with np.load(file) as arrays:
            return dict(arrays)
    except (OSError, EOFError, ValueError, TypeError, BadZipFile) as error:
        raise UserError(f"{file} cannot be read as .npz arrays: {error}.") from error


def _small(ids: Tensor) -> np.ndarray:
    """Token ids in two bytes each, or in four where a vocabulary is larger than that."""
    return ids.numpy().astype(np.uint16 if not ids.numel() or int(ids.max()) < 1 << 16 else np.uint32)
