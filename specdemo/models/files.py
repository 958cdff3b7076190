"""What files are known by, and how checkpoints are read."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from specdemo.errors import UserError

HEAD_KINDS = ("eagle", "medusa")
STAMP = "source.json"
"""Beside weights that were converted: which file they were made from."""

_BLOCK = 1 << 20
_INDEX = "model.safetensors.index.json"


def sha256_of(*files: Path) -> str:
    """sha256 of the files' bytes, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder by their names. Raises UserError where it has none, or quantised ones."""
    require_plain(folder)
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= load_file(file)
    return weights


def require_plain(folder: Path) -> None:
    """Raises UserError for weights that are whole numbers: without the scales that they were rounded by, which are left
    out here, they would be computed with as they stand."""
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            names = [name for name in list(file.keys()) if name.endswith("weight")]
            kinds = {name: file.get_slice(name).get_dtype() for name in names}
        if found := next((name for name, kind in kinds.items() if kind.startswith(("I", "U", "F8"))), None):
            raise UserError(
                f"{folder} holds {found} as {kinds[found]}: it is quantised, which is not computed here. Fetch weights "
                "in fp32, fp16 or bf16."
            )


def element_counts(folder: Path) -> dict[str, int]:
    """How many numbers each tensor of a checkpoint has, by its name, from the headers of the files; whole numbers (ids,
    say) are left out. Raises UserError where there are no files, SafetensorError where one is damaged."""
    counts: dict[str, int] = {}
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            parts = {name: part.get_shape() for name, part in slices.items() if "F" in part.get_dtype()}
        counts |= {name: math.prod(shape) for name, shape in parts.items()}
    return counts


def require_numbers(tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype | None = None) -> None:
    """Raises UserError for weights with a NaN or an infinite number in them, be it only in the precision asked for."""
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise UserError(
                f"{folder} holds {name} with numbers that are not finite (NaN or infinite): it is damaged. Make it or "
                "fetch it again."
            )
        if dtype and value.is_floating_point() and not value.to(dtype).isfinite().all():
            raise UserError(f"{folder} holds {name} with numbers too large for this precision: give --dtype fp32.")


def has_weights(folder: Path) -> bool:
    """Whether a folder holds a model in safetensors."""
    return any((folder / name).is_file() for name in ("model.safetensors", _INDEX))


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the model: those of its index, or the one of that name. Others may lie beside them."""
    index = folder / _INDEX
    if index.is_file():
        return sorted({folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} has no safetensors file: other formats can run code when they are opened.")
    return [folder / "model.safetensors"]


def weights_sha256(folder: Path) -> str:
    """What a model folder's weights are known by: the file that they were converted from, else their own bytes."""
    try:
        return json.loads((folder / STAMP).read_text(encoding="utf-8"))["gguf_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return sha256_of(*weight_files(folder))


def read_config(folder: Path) -> dict:
    """config.json, empty where there is none. Raises UserError for one that is damaged."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"config.json in {folder} cannot be read ({error}). Fetch it again.") from error
    if not isinstance(config, dict):
        raise UserError(f"config.json in {folder} is not an object of fields. Fetch it again.")
    return config


def kind_of(folder: Path) -> str:
    """Which kind of head a folder holds. Raises UserError where it holds none."""
    if not folder.is_dir():
        raise UserError(
            f"There is no folder {folder}. A head on the hub is fetched and brought into this project's form by: "
            "python -m specdemo convert"
        )
    kind = read_config(folder).get("head")
    if kind not in HEAD_KINDS:
        raise UserError(
            f"{folder} is no head: its config.json does not say so. Published checkpoints are brought into this form "
            "by: python -m specdemo convert"
        )
    return kind
