"""Every option of every command with every kind of bad value: refused in a sentence, before anything long begins.

The commands are walked, not listed: an option that is added is covered by what kind of option it is.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from typer.models import ArgumentInfo
from typer.testing import CliRunner

from specdemo.cli import app
from specdemo.events import Machine, ModelInfo, Round, Token, Trace
from specdemo.settings import Settings


class LongWorkBeganError(Exception):
    """Whatever takes long raises this here instead."""


LONG = (
    "specdemo.models.loading.load_pair",
    "specdemo.host.Host.prepare",
    "specdemo.bench.synthetic.run",
    "specdemo.models.convert.snapshot_download",
    "specdemo.training.target.resolve",
    "specdemo.training.target.read_weights",
)
NEEDED = {
    "run": {"prompt": "Hello"},
    "convert": {"source": "owner/name", "out": "out"},
    "repeat": {"file": "trace.json"},
    "train label": {"text": "text.npz"},
}
"""Arguments without which a command does nothing, all of them right."""

FREE = {"prompt", "target", "draft", "head", "source"}
"""Text that may be anything: a sentence, a folder, a hub id. All other text is a choice from a list."""
READ = {"prompts", "text", "start", "folder", "card", "file"}
"""Paths that are read, and none of the tests' files is of the right kind."""
UNLIMITED = {"minutes"}


@dataclass(frozen=True)
class Option:
    command: str
    name: str
    flag: str  # empty for an argument
    kind: type

    @property
    def bad(self) -> list[str]:
        """Values that no option of this kind and name may take."""
        if self.kind is int:
            return ["x", "", "-1", "1.5", str(10**30)]
        if self.kind is float:
            return ["x", "", "nan", "-1", *([] if self.name in UNLIMITED else ["inf"])]
        if self.kind is Path:
            return ["/proc/nothing/x", "a-file/x", "a" * 5000]
        if self.name == "rival":  # empty is none
            return ["nonsense"]
        return [""] if self.name in FREE else ["", "nonsense"]


def commands(group=app, above: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """('train draft', its function), for all of them."""
    for info in group.registered_commands:
        yield " ".join((*above, info.callback.__name__)), info.callback
    for info in group.registered_groups:
        yield from commands(info.typer_instance, (*above, info.name))


def options() -> Iterator[Option]:
    """Every option and argument that takes a value."""
    for command, function in commands():
        hints = get_type_hints(function, include_extras=True)
        for name in inspect.signature(function).parameters:
            kind, info = get_args(hints[name])
            if get_origin(kind) is types.UnionType:  # ... | None
                kind = get_args(kind)[0]
            if get_origin(kind) is list:
                (kind,) = get_args(kind)
            assert kind in (int, float, str, bool, Path), f"nobody has said what is bad for {kind}"
            flag = next(iter(info.param_decls or ()), f"--{name.replace('_', '-')}")
            if kind is not bool:
                yield Option(command, name, "" if isinstance(info, ArgumentInfo) else flag, kind)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, in which nothing long begins."""

    def begin(*_args: object, **_options: object) -> None:
        raise LongWorkBeganError

    for name in LONG:
        monkeypatch.setattr(name, begin)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-file").write_bytes(b"\x00\xffnothing that anybody reads")
    model = ModelInfo(name="a", parameters=1, dtype="fp32")
    machine = Machine(device="cpu", processor="a", threads=1, python="3", packages={})
    token = Token(id=0, text="a", outcome="plain", position=0)
    spent = dict.fromkeys(("draft_seconds", "verify_seconds", "overhead_seconds", "clock"), 0.0)
    lanes = {"baseline": [Round(round=0, start=0, drafted=[], final=token, **spent)]}
    trace = Trace(created="", settings=Settings(prompt="a"), target=model, machine=machine, lanes=lanes)
    (tmp_path / "trace.json").write_text(trace.to_json())
    np.savez(tmp_path / "text.npz", ids=np.ones((1, 4), np.uint16), role=np.zeros((1, 4), np.uint8))
    return tmp_path


def refused(option: Option, value: str) -> bool:
    """Whether the value is refused. In any other way than with a sentence, the test has failed."""
    given, typed = dict(NEEDED.get(option.command, {})), []
    if option.flag:
        typed = [f"{option.flag}={value}", *(["--synthetic"] if option.name == "size" else [])]
        if option.name == "prompts":
            given.pop("prompt", None)  # one or the other
    else:
        given[option.name] = value
    done = CliRunner().invoke(app, [*option.command.split(), *typed, "--", *given.values()])
    if isinstance(done.exception, LongWorkBeganError) or done.exit_code == 0:  # or there was nothing to do
        return False
    what = f"{option} {value[:30]!r}: {done.exception!r} {done.output}"
    assert (type(done.exception), done.exit_code) == (SystemExit, 2), what
    assert done.stderr.strip(), what
    return True


def everything_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("option", [*options()], ids=lambda option: f"{option.command} {option.flag or option.name}")
def test_a_bad_value_is_refused_before_anything_long(option: Option, place: Path) -> None:
    before = everything_in(place)
    for value in option.bad:
        assert refused(option, value), f"{option} takes {value[:30]!r}"
    if option.kind is Path:
        missing, file, folder = (refused(option, value) for value in ("missing", "a-file", "a-folder"))
        assert file or folder, f"{option} takes a file for a folder, or a folder for a file"
        assert not (missing and file and folder) or option.name in READ, option
    elif option.kind in (int, float):
        for value in ("0", "1"):  # whether these are right is the option's own affair
            refused(option, value)
    assert everything_in(place) == before


@pytest.mark.parametrize("command", [command for command, _ in commands()])
def test_what_is_right_comes_as_far_as_the_long_work(command: str, place: Path) -> None:
    done = CliRunner().invoke(app, [*command.split(), *NEEDED.get(command, {}).values()])
    assert isinstance(done.exception, LongWorkBeganError), done.output


def test_the_walk_finds_commands_of_commands() -> None:
    assert {"serve", "run", "bench", "tune", "convert", "train draft", "train measure"} <= {
        name for name, _ in commands()
    }
