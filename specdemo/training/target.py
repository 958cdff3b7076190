"""The teacher of a distillation: a loaded target model and the precision to run it in."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdemo.models.lean import LeanModel


@dataclass(frozen=True)
class Target:
    """A target model's parts. `sha256` names the weights that a trained draft belongs to."""

    weights: dict[str, Tensor]
    config: object
    tokenizer: object
    sha256: str

    def lean(self, device: str, dtype: torch.dtype) -> LeanModel:
        """The lean forward pass over these weights."""
        return LeanModel(self.config, self.weights, torch.device(device), dtype)


def load_target(name_or_path: str, device: str) -> Target:
    """Load a checkpoint folder (config.json, model.safetensors, tokenizer files).

    Raises:
        FileNotFoundError: if the folder holds no model.safetensors.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    file = Path(name_or_path) / "model.safetensors"
    if not file.exists():
        raise FileNotFoundError(f"{name_or_path} is not a checkpoint folder: it has no model.safetensors.")
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    config = AutoConfig.from_pretrained(name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    return Target(load_file(file, device=device), config, tokenizer, digest.hexdigest())


def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 where this device multiplies it faster than float32 (GPUs, processors with AMX), else float32.

    Measured, not looked up: a processor may accept bfloat16 and emulate it several times slower.
    """
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(768, 768, device=device, dtype=dtype)
        (a @ a)[0, 0].item()
        start = time.perf_counter()
        for _ in range(3):
            (a @ a)[0, 0].item()
        seconds[dtype] = time.perf_counter() - start
    return torch.bfloat16 if seconds[torch.bfloat16] < 0.8 * seconds[torch.float32] else torch.float32
