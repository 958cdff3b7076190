"""Whether results can be written where they are wanted, asked before the work: what fails at its end is lost."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specdemo.errors import UserError


def require_writable(
    *files: Path | None, folders: Sequence[Path | None] = (), inputs: Sequence[Path | None] = ()
) -> None:
    """Raises UserError for a file or a folder that could not be written later, or a file that is wanted twice.

    It is tried, as permissions do not tell (of a full or a read-only disk, or to an administrator): what is there
    already stays as it is, and nothing new is left. None stands for an output that nobody wants.

    Args:
        files: to be written, in folders that exist.
        folders: to be written into; they and those above them may be missing yet.
        inputs: files that are read, and must not be written over.
    """
    taken = {_resolved(file) for file in inputs if file is not None}
    for file in files:
        if file is None:
            continue
        found = _resolved(file)
        if found in taken:
            raise UserError(f"{file} is named twice, and one would be written over the other. Choose another file.")
        taken.add(found)
        _try_file(file, found)
    for folder in folders:
        if folder is not None:
            _try_folder(folder, _resolved(folder))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a link that leads to itself, a name with a NUL in it
        raise _refusal(path, error) from error


def _try_file(file: Path, found: Path) -> None:
    try:
        if found.is_dir():
            raise UserError(f"{file} is a folder. Give the name of a file.")
        if not found.parent.is_dir():
            raise UserError(f"{file} cannot be written: there is no folder {found.parent}.")
        if found.is_file():
            found.open("ab").close()
        elif not found.exists():  # devices and pipes are not opened to try: somebody may be listening
            found.open("xb").close()
            found.unlink()
    except (OSError, ValueError) as error:
        raise _refusal(file, error) from error


def _try_folder(folder: Path, found: Path) -> None:
    with contextlib.ExitStack() as undo:
        try:
            if found.exists() and not found.is_dir():
                raise UserError(f"{folder} is a file. Give the name of a folder.")
            for missing in [path for path in (*reversed(found.parents), found) if not path.exists()]:
                missing.mkdir()
                undo.callback(missing.rmdir)
            tempfile.TemporaryFile(dir=found).close()
        except (OSError, ValueError) as error:
            raise _refusal(folder, error) from error


def _refusal(path: Path, error: Exception) -> UserError:
    why = getattr(error, "strerror", None) or error
    return UserError(f"{path} cannot be written ({why}). Choose another place.")
