"""Folders that are made once and kept in the cache: by one process at a time, swapped in whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir
from safetensors import SafetensorError

from specdemo.errors import UserError
from specdemo.models.files import STAMP

_WORK = "making-"  # prefix of the folders that downloads and conversions happen in
_RECIPE = 2  # one more whenever something else is made of the same file; 2: text is cut by the file's own rule


def cache_folder() -> Path:
    """Where downloads and conversions live: $SPECDEMO_CACHE, else the user's cache directory."""
    return Path(os.environ.get("SPECDEMO_CACHE") or user_cache_dir("specdemo", appauthor=False))


def keep(name: str, sha256: str, what: str, needed_bytes: int, make: Callable[[Path], Path]) -> Path:
    """The model folder of that name in the cache, made the first time, and again where it is damaged or out of date.

    Args:
        sha256: of the GGUF file that it is made from; a folder that was made from another is made again.
        what, needed_bytes: who needs how much room while it is made, for the message about a full disk.
        make: gets an empty folder to work in and returns the finished one in there.
    Raises UserError where the cache cannot be written or the disk is full.
    """
    if found := find(name, sha256):
        return found
    cache = cache_folder()
    folder = cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not find(name, sha256):  # another process may have made it while this one waited
                if shutil.disk_usage(cache).free < needed_bytes:
                    raise UserError(_no_room(cache, what, needed_bytes))
                _make(folder, sha256, make)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(_no_room(cache, what, needed_bytes)) from error
        raise UserError(f"The cache folder {cache} cannot be used ({error.strerror}). Set SPECDEMO_CACHE.") from error
    except SafetensorError as error:  # what writing the weights raises on a full disk
        raise UserError(_no_room(cache, what, needed_bytes)) from error
    return folder


def _make(folder: Path, sha256: str, make: Callable[[Path], Path]) -> None:
    prefix = f"{_WORK}{folder.name}-"
    for leftover in folder.parent.glob(f"{prefix}*"):  # of a process that was killed; the lock is ours now
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as work:
        made = make(Path(work))
        # Written last: says what a finished folder was made from and how large its files are.
        (made / STAMP).write_text(json.dumps({"gguf_sha256": sha256, "recipe": _RECIPE, "files": sizes(made)}))
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def find(name: str, sha256: str) -> Path | None:
    """The kept folder of that name; None where it was not finished, is of another recipe, holds no weights, or a file
    changed its size."""
    folder = cache_folder() / name
    try:
        stamp = json.loads((folder / STAMP).read_text())
        made_so = (stamp["gguf_sha256"], stamp["recipe"]) == (sha256, _RECIPE)
        whole = made_so and stamp["files"] == sizes(folder)
        with (folder / "model.safetensors").open("rb") as file:
            return folder if whole and file.read(9)[8:] == b"{" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file in a folder, but for the stamp's."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != STAMP}


def _no_room(cache: Path, what: str, needed_bytes: int) -> str:
    free = shutil.disk_usage(cache).free / 1e9
    return (
        f"The disk is full: {what} needs {max(1, needed_bytes / 1e9):.0f} GB in {cache}, {free:.1f} GB are free. "
        "Make room or set SPECDEMO_CACHE to another disk."
    )
