"""Places for results, tried before there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdemo.errors import UserError
from specdemo.outputs import require_writable


def test_what_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("kept")
    (tmp_path / "full").mkdir()
    new = tmp_path / "new" / "and" / "deeper"
    require_writable(tmp_path / "old.json", tmp_path / "new.json", None, folders=[tmp_path / "full", new, None])
    assert {path.name for path in tmp_path.rglob("*")} == {"old.json", "full"}
    assert (tmp_path / "old.json").read_text() == "kept"


def test_a_device_is_an_output_too() -> None:
    require_writable(Path("/dev/null"))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("", "is a folder"),
        ("missing/x.json", "there is no folder"),
        ("file/x.json", "there is no folder"),
        ("/proc/x.json", "cannot be written"),
        ("x" * 300, "cannot be written"),
        ("nul\0", "cannot be written"),
        ("loop", "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, file: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=why):
        require_writable(tmp_path / file)


@pytest.mark.parametrize(
    ("folder", "why"), [("file", "is a file"), ("file/below", "cannot be written"), ("/proc/x/y", "cannot be written")]
)
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=why):
        require_writable(folders=[tmp_path / folder])


def test_nothing_is_written_over_another_output_or_an_input(tmp_path: Path) -> None:
    prompts, link = tmp_path / "prompts.jsonl", tmp_path / "link.jsonl"
    prompts.touch()
    link.symlink_to(prompts)
    with pytest.raises(UserError, match="named twice"):
        require_writable(tmp_path / "a", tmp_path / "x" / ".." / "a")
    with pytest.raises(UserError, match="named twice"):
        require_writable(link, inputs=[prompts])
