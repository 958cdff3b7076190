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


_MARK = "<!-- written by the training command, which replaces it -->"
_CARD = """# {title}

{mark} Made by `python -m specdemo train {command}` for the target whose weights have the sha256
`{target}`. On other weights it still drafts exactly, and is accepted less often.

| | |
|---|---|
| weights | {weights:,} |
| text | {tokens:,} tokens of the target's own answers, {rows:,} conversations |
| held out | {held_out:,} conversations |
| training | {steps:,} steps of {tokens_per_step:,} tokens, {minutes:.0f} minutes |
| held-out match by depth | {matches} |
| held-out expected alpha | {alpha:.3f} |

Match: share of greedy held-out answer positions at which the first choice is the target's, given that everything
before was right. Expected alpha: mean of sum min(p, q) there, at temperature 1.

Recipe: {recipe}
"""


def write_card(learner: Learner, folder: Path, title: str, command: str, facts: dict) -> None:
    """A model card from the facts of a run. One that somebody has written by hand stays."""
    card = folder / "README.md"
    if card.exists() and _MARK not in card.read_text(encoding="utf-8"):
        return
    text = _CARD.format(
        title=title,
        mark=_MARK,
        command=command,
        target=facts["target_sha256"],
        weights=sum(value.numel() for value in learner.exported().values()),
        tokens=facts["data"]["assistant_tokens"],
        rows=facts["data"]["rows"],
        held_out=facts["data"]["held_out_rows"],
        steps=facts["trained"]["steps"],
        tokens_per_step=facts["recipe"]["tokens_per_step"],
        minutes=facts["trained"]["seconds"] / 60,
        matches=", ".join(f"{match:.3f}" for match in facts["validation"]["greedy_match"]),
        alpha=facts["validation"]["expected_alpha"],
        recipe=", ".join(f"{name} {value}" for name, value in facts["recipe"].items()),
    )
    card.write_text(text, encoding="utf-8")
