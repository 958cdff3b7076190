"""What was measured on this machine once and need not be again: it takes seconds, and differs a little every time.

Kept in the cache folder, a file for each kind of machine (processor, threads, torch), so that a cache that travels with
a container or a home directory brings nobody else's figures along. A folder that cannot be written keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from specdemo.models.device import processor_name
from specdemo.models.wheel import cache_folder

_WAIT = 5.0  # seconds for another process that is writing


def recall(name: str) -> Any | None:
    """What was kept under a name, None where nothing is."""
    return _read().get(name)


def keep(name: str, value: Any) -> None:
    """Keep something that JSON can hold, for this process and later ones."""
    file = _file()
    with contextlib.suppress(OSError, Timeout):
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=_WAIT):
            unfinished = file.with_suffix(".tmp")
            unfinished.write_text(json.dumps({**_machine(), "measured": _read() | {name: value}}, indent=1))
            os.replace(unfinished, file)


def _read() -> dict[str, Any]:
    try:
        found = json.loads(_file().read_text())
        return found["measured"] if all(found[key] == value for key, value in _machine().items()) else {}
    except (OSError, ValueError, KeyError, TypeError):  # nothing there, or nothing that can be used
        return {}


def _machine() -> dict[str, Any]:
    processor = processor_name(torch.device("cpu"))
    return {"processor": processor, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _file() -> Path:
    key = hashlib.sha256(json.dumps(_machine()).encode()).hexdigest()[:12]
    return cache_folder() / f"machine-{key}.json"
