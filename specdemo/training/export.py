"""Trained weights as a folder that the rest of the project loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors.torch import save_file

from specdemo.training.dataset import Learner


def export(learner: Learner, folder: Path, facts: dict) -> None:
    """Write config.json (with `facts` under "specdemo") and model.safetensors, the latter in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (value.detach().bfloat16() if value.is_floating_point() else value).contiguous()
        for name, value in learner.exported().items()
    }
    unfinished = folder / "model.safetensors.tmp"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, folder / "model.safetensors")
    config = learner.description | {"specdemo": facts}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
