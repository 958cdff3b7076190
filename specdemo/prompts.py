"""Files of prompts: one {"category": ..., "prompt": ...} a line."""

from __future__ import annotations

import json
from pathlib import Path

from specdemo.errors import UserError
from specdemo.settings import well_formed


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """(category, prompt) of every line of a .jsonl file; raises UserError with the line that is wrong."""
    prompts = []
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            category, prompt = (well_formed(str(item[key])) for key in ("category", "prompt"))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{file}, line {number}, is no {{"category": ..., "prompt": ...}} line.') from error
        if not prompt.strip():
            raise UserError(f"{file}, line {number}, has an empty prompt.")
        prompts.append((category, prompt))
    if not prompts:
        raise UserError(f"{file} has no prompt in it.")
    return prompts
