"""The teacher of a distillation: a loaded target model and the precision to run it in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig

from specdemo.errors import UserError
from specdemo.models.files import read_weights, weights_sha256
from specdemo.models.lean import LeanModel
from specdemo.models.loading import is_lean, resolve
from specdemo.models.pairs import BUILT_IN_TARGET, local_path
from specdemo.models.tokens import load_tokenizer


@dataclass(frozen=True)
class Target:
    """A target model's parts. `sha256` names the weights that a trained draft belongs to."""

    weights: dict[str, Tensor]
    config: object
    tokenizer: object
    sha256: str

    def lean(self, device: str, dtype: torch.dtype) -> LeanModel:
        """The lean forward pass over these weights."""
        return LeanModel(self.config, dict(self.weights), torch.device(device), dtype)


def load_target(
    source: str, device: str, check: Callable[[Any, Any], object] = lambda config, tokenizer: None
) -> Target:
    """Load the built-in target, a checkpoint folder (config.json, safetensors, tokenizer files) or a GGUF file.

    `check` sees its config and tokenizer before the weights are read, and raises UserError for one that will not do.

    Raises:
        UserError: for what is none of them, or of a family that the lean forward does not compute.
    """
    if source != BUILT_IN_TARGET and not local_path(source):
        raise UserError(f"There is no folder {source}. Training takes folders and GGUF files, no hub ids.")
    folder = Path(resolve(source)[1])
    try:
        config, tokenizer = AutoConfig.from_pretrained(folder), load_tokenizer(pretrained_model_name_or_path=folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(f"{source} has no config or no tokenizer that can be read: {first}") from error
    if not is_lean(config):
        raise UserError(f"{source} is no model of the lean forward pass (Llama, Mistral, Qwen2, Qwen3).")
    check(config, tokenizer)
    weights = {name: value.to(device) for name, value in read_weights(folder).items()}
    return Target(weights, config, tokenizer, weights_sha256(folder))


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
