"""What long work has made so far, on the disk: one line of JSON for each finished piece, written when it is finished.

A process that is killed loses the piece it was at and no other. The first line says whose journal it is, so that work
is never continued with the results of other work.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from specdemo.errors import UserError

R = TypeVar("R", bound=BaseModel)


class Journal(Generic[R]):
    """`records`: what the file held when it was opened, and what was appended since.

    head: what the work is, by names that a reader understands. resume: continue the file where there is one; without it
    a new one begins, and the old one stays beside it with `.old` behind its name. Raises UserError for a file that
    cannot be written, is no journal, or belongs to work with another head.
    """

    def __init__(self, file: Path, kind: Any, head: dict[str, Any], resume: bool) -> None:
        self.file, self.records = file, []
        self._kind: TypeAdapter[R] = TypeAdapter(kind)
        head = json.loads(json.dumps(head))  # as a file gives it back
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            length = self._read(head) if resume and file.exists() else 0
            if not length and file.exists():
                os.replace(file, file.with_name(f"{file.name}.old"))
            self._stream = file.open("ab")
            self._stream.truncate(length)  # what is behind was being written when the process was killed
            if not length:
                self._write(json.dumps({"journal": head}))
        except OSError as error:
            raise UserError(f"{file} cannot be written ({error.strerror}). Choose another file with --work.") from error

    def append(self, record: R) -> None:
        """Keep a record; it is on the disk when this returns."""
        self._write(self._kind.dump_json(record).decode())
        self.records.append(record)

    def close(self) -> None:
        self._stream.close()

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n".encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _read(self, head: dict[str, Any]) -> int:
        """Take over the file's records; the bytes of its whole lines."""
        whole, newline, _ = self.file.read_bytes().rpartition(b"\n")
        if not newline:
            return 0
        first, *lines = whole.split(b"\n")
        try:
            theirs = dict(json.loads(first)["journal"])
            self.records = [self._kind.validate_json(line) for line in lines]
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise UserError(
                f"{self.file} is not a journal of this command. Choose another file with --work."
            ) from error
        others = [name for name in head if head[name] != theirs.get(name)]
        if others:
            raise UserError(
                f"{self.file} cannot be continued here: not the same {', '.join(others)}. Resume it with its own "
                "options, leave --resume out to begin anew, or choose another file with --work."
            )
        return len(whole) + 1


def place(work: Path | None, result: Path | None, command: str) -> Path:
    """Where a command's journal lies: where it was asked for, else beside its result, else in the cache folder."""
    from specdemo.models.kept import cache_folder

    if work:
        return work
    return result.with_suffix(".runs.jsonl") if result else cache_folder() / f"{command}.runs.jsonl"
