"""What a benchmark notes about where it ran, and on what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from specdemo.models.loading import LoadedPair
from specdemo.race import machine


def identity(loaded: LoadedPair) -> dict[str, Any]:
    """What runs must share to be compared: models, machine, code."""
    models = [loaded.target, loaded.draft, *loaded.heads.values()]
    return {
        "models": [model.info.model_dump() if model and model.info else None for model in models],
        "machine": machine(loaded.target.device).model_dump(),
        "version of specdemo": commit(),
    }


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
