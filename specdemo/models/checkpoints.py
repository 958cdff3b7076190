"""Weights as others publish them: safetensors, or pickles that are opened without running anything in them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specdemo.errors import UserError

_NAMES = ("medusa_lm_head", "model", "pytorch_model")  # heads first: beside them may lie the model that they are for
_SUFFIXES = (".safetensors", ".bin", ".pt")


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, on the CPU. Raises UserError where there are none, or something else than weights."""
    weights: dict[str, Tensor] = {}
    for file in _files(folder):
        weights |= _read(file)
    return weights


def _files(folder: Path) -> list[Path]:
    """The files that make up the checkpoint; safetensors are preferred to pickles of the same name."""
    for name in _NAMES:
        for suffix in _SUFFIXES:
            file = folder / f"{name}{suffix}"
            index = folder / f"{name}{suffix}.index.json"
            if index.is_file():
                return _listed(index)
            if file.is_file():
                return [file]
    others = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    if len(others) == 1:
        return others
    if others:
        names = ", ".join(file.name for file in others[:3])
        raise UserError(f"{folder} has several files of weights ({names}): leave one, or call it model.safetensors.")
    raise UserError(
        f"{folder} has no weights: expected medusa_lm_head.pt, model.safetensors, pytorch_model.bin or another file "
        f"that ends with {', '.join(_SUFFIXES)}."
    )


def _listed(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is not an index of weights. Fetch it again.") from error
    for name in names:
        if not (index.parent / name).is_file():
            raise UserError(f"{index.name} lists {name}, which is not in {index.parent}. Fetch it.")
    return [index.parent / name for name in names]


def _read(file: Path) -> dict[str, Tensor]:
    """One file's weights. Pickles may hold nothing but tensors, so none of their code can run."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found = torch.load(file, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} is not a pickle of plain tensors (damaged, or it would run code when opened), so it was not "
            "opened. Look for a checkpoint in safetensors, or ask its publisher for a state dict."
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(f"{file} is damaged or cut short ({first}). Fetch it again.") from error
    for wrapper in ("state_dict", "model", "module"):
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()) or not found:
        raise UserError(f"{file} holds something else than named tensors. Give a state dict.")
    return found
