"""Files of prompts: one {"category": ..., "prompt": ...} a line."""

from __future__ import annotations

import json
from pathlib import Path

from specdemo.errors import UserError
from specdemo.settings import well_formed

SHIPPED = Path(__file__).parents[1] / "assets" / "prompts.jsonl"
"""Six categories, none of them among the text that drafts and heads were trained on."""


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """(category, prompt) of every line of a .jsonl file; raises UserError with the line that is wrong."""
    prompts = []
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            category, prompt = item["category"], item["prompt"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f'{file}, line {number}, is no {{"category": ..., "prompt": ...}} line.') from error
        for name, value in (("category", category), ("prompt", prompt)):
            if not isinstance(value, str):
                raise UserError(f"{file}, line {number}, has a {name} that is no text: {json.dumps(value)[:40]}.")
        if not prompt.strip():
            raise UserError(f"{file}, line {number}, has an empty prompt.")
        prompts.append((well_formed(category), well_formed(prompt)))
    if not prompts:
        raise UserError(f"{file} has no prompt in it.")
    return prompts
