"""Races in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from specdemo import terminal
from specdemo.errors import UserError
from specdemo.events import Trace
from specdemo.prompts import read_prompts
from tests.test_race import settings, tiny_pair


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_a_race_is_shown_with_its_text_and_its_numbers() -> None:
    trace, metrics = terminal.collect(tiny_pair(), settings())
    out = console()
    terminal.show(trace, metrics, out)
    shown = out.file.getvalue()
    assert "1 identical" in shown
    assert f"{metrics.speculative.tokens_per_pass:.2f}" in shown
    assert Trace.from_json(trace.to_json()) == trace


def test_a_table_has_a_line_for_each_category_and_their_mean(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"category": "x", "prompt": "a b"}\n\n{"category": "y", "prompt": "c"}\n')
    out = console()
    base = settings().model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, read_prompts(file), out)
    shown = out.file.getvalue()
    assert all(word in shown for word in ("x", "y", "mean", "1 identical"))


def test_a_rival_has_its_own_text_and_its_own_line() -> None:
    trace, metrics = terminal.collect(tiny_pair(), settings(rival="prompt-lookup"))
    out = console()
    terminal.show(trace, metrics, out)
    shown = out.file.getvalue()
    assert shown.count("draft-model") == shown.count("prompt-lookup") == 2  # over its text, and in the table
    assert f"{metrics.of_rival.speculative.tokens_per_pass:.2f}" in shown


def test_over_many_prompts_each_drafter_has_a_table() -> None:
    out = console()
    base = settings(rival="prompt-lookup").model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, [("x", "a b"), ("y", "c")], out)
    shown = out.file.getvalue()
    assert shown.index("draft-model") < shown.index("prompt-lookup")
    assert shown.count("mean") == 2


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"category": "x"}',
        "[1]",
        "[" * 100_000,
        '{"category": 3, "prompt": "a"}',
        '{"category": null, "prompt": "a"}',
        '{"category": "x", "prompt": null}',
        '{"category": "x", "prompt": ["a"]}',
    ],
)
def test_a_bad_line_of_a_prompts_file_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"category": "x", "prompt": "a"}\n' + line)
    with pytest.raises(UserError, match="line 2"):
        read_prompts(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path / "missing")
