"""Races in the terminal."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from specdemo import terminal
from specdemo.decoding import baseline as decoding
from specdemo.errors import UserError
from specdemo.events import Trace
from specdemo.metrics import RaceMetrics
from specdemo.prompts import read_prompts
from tests.test_broken_models import Broken
from tests.test_race import settings, tiny_pair
from tests.tiny import Tiny


def console(terminal: bool | None = None) -> Console:
    return Console(
        file=io.StringIO(), width=160, force_terminal=terminal, color_system="truecolor" if terminal else None
    )


def test_a_race_is_shown_with_its_text_and_its_numbers() -> None:
    out = console()
    trace = terminal.run_one(tiny_pair(), settings(), out, out)
    shown = out.file.getvalue()
    assert "1 identical" in shown
    assert f"{RaceMetrics.of_trace(trace).speculative.tokens_per_pass:.2f}" in shown
    assert Trace.from_json(trace.to_json()) == trace


def test_what_was_not_drafted_and_what_went_wrong_stand_below_the_table() -> None:
    out, short = console(), Tiny(8, seed=2, max_length=10).lean
    terminal.run_one(replace(tiny_pair(), draft=short), settings(), out, out)
    assert re.search(
        r"Nothing was drafted in \d+ of \d+ rounds: the draft reads at most 10 tokens", out.file.getvalue()
    )
    out, broken = console(), replace(tiny_pair(), target=Broken(8, seed=1).lean)
    terminal.run_one(broken, settings(), out, out)
    assert out.file.getvalue().count("tiny computed no probabilities for token 0") == 1
    base = settings(rival="prompt-lookup").model_dump(exclude={"prompt"})
    terminal.run_all(broken, base, [("x", "a b"), ("y", "c")], out)
    assert out.file.getvalue().count("tiny computed no probabilities for token 0") == 2


def test_a_table_has_a_line_for_each_category_and_their_mean(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"category": "x", "prompt": "a b"}\n\n{"category": "y", "prompt": "c"}\n')
    out = console()
    base = settings().model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, read_prompts(file), out)
    shown = out.file.getvalue()
    assert all(word in shown for word in ("x", "y", "mean", "1 identical"))


def test_a_terminal_marks_refused_drafts_and_a_pipe_gets_the_answer() -> None:
    seen, piped, beside = console(terminal=True), console(), console()
    trace = terminal.run_one(tiny_pair(), settings(), seen, seen)
    assert any(t.outcome == "rejected" for r in trace.rounds("speculative") for t in r.drafted)
    terminal.show(trace, piped, beside)
    assert "\x1b[9;31m" in seen.file.getvalue(), "struck out, in red"
    assert piped.file.getvalue() == f"{trace.text('speculative')}\n"
    assert "1 identical" in beside.file.getvalue()


def test_a_baseline_alone_is_shown_too() -> None:
    out, beside = console(), console()
    trace = terminal.run_one(tiny_pair(), settings(mode="baseline"), out, beside)
    assert out.file.getvalue() == f"{trace.text('baseline')}\n"


def test_a_rival_has_its_own_text_and_its_own_line() -> None:
    out = console(terminal=True)
    trace = terminal.run_one(tiny_pair(), settings(rival="prompt-lookup"), out, out)
    shown = out.file.getvalue()
    assert shown.count("draft-model") == 2  # over its text, and in the table
    assert shown.count("prompt-lookup") == 3  # and before the rounds in which it found nothing
    assert f"{RaceMetrics.of_trace(trace).of_rival.speculative.tokens_per_pass:.2f}" in shown


def test_over_many_prompts_each_drafter_has_a_table() -> None:
    out = console()
    base = settings(rival="prompt-lookup").model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, [("x", "a b"), ("y", "c")], out)
    shown = out.file.getvalue()
    assert shown.index("draft-model") < shown.index("prompt-lookup")
    assert shown.count("mean") == 2


def test_numbers_that_do_not_exist_are_dashes() -> None:
    """One token a text: no decode rate; no drafts: no alpha."""
    out = console()
    base = settings(max_tokens=1).model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, [("x", "a b"), ("y", "c")], out)
    shown = out.file.getvalue()
    assert "nan" not in shown
    assert shown.count(" - ") >= 6


def test_a_lane_that_stood_still_is_named_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, real = [], decoding.draw

    def draw(p, u):
        draws.append(u)
        if len(draws) == 10:
            time.sleep(1.0)
        return real(p, u)

    monkeypatch.setattr(decoding, "draw", draw)
    out = console()
    base = settings(max_tokens=24).model_dump(exclude={"prompt"})
    terminal.run_all(tiny_pair(), base, [("x", "a b"), ("y", "c")], out)
    assert "! Prompt 1 (x): the baseline lane stood still for 1 s" in out.file.getvalue()


def test_races_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, base = tmp_path / "w.jsonl", settings().model_dump(exclude={"prompt"})
    prompts = [("x", "a b"), ("y", "c")]
    first, second = console(), console()
    terminal.run_all(tiny_pair(), base, prompts, first, file)
    monkeypatch.setattr(terminal, "race", None)
    terminal.run_all(tiny_pair(), base, prompts, second, file, resume=True)
    table = lambda out: out.file.getvalue().partition("┏")[2]  # noqa: E731
    assert table(first) == table(second)
    with pytest.raises(UserError, match="not the same prompts"):
        terminal.run_all(tiny_pair(), base, prompts[:1], console(), file, resume=True)


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
