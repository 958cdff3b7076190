"""Commands that are killed, stopped and taken up again, as real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers
from typer.testing import CliRunner

from specdemo.bench.report import Report
from specdemo.cli import app
from specdemo.events import Trace
from specdemo.race import race
from tests.test_loading import save_model
from tests.test_text import word_tokenizer

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specdemo", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def stop_at(process: subprocess.Popen[str], journal: Path, records: int, number: int) -> tuple[int, str]:
    """Send a signal once the journal has so many lines; status and output."""
    while len(lines(journal)) < records and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    shown, _ = process.communicate(timeout=60)
    return process.returncode, shown


@pytest.fixture
def common(tmp_path: Path) -> Iterator[list[object]]:
    """Options of a pair and prompts: short ones, many of them."""
    file = tmp_path / "prompts.jsonl"
    every = [{"category": name, "prompt": "a b c a b c"} for name in ("code", "maths")]
    file.write_text("\n".join(map(json.dumps, every)))
    target, draft = save_model(tmp_path / "t"), save_model(tmp_path / "d", seed=2)
    tokenizer = word_tokenizer(list("abcdefgh"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for folder in (target, draft):
        tokenizer.save_pretrained(folder)
    return ["--target", target, "--draft", draft, "--prompts", file, "--device", "cpu"]


def test_a_benchmark_survives_being_killed_and_stopped_and_is_continued(tmp_path: Path, common: list) -> None:
    result, journal = tmp_path / "r.json", tmp_path / "r.runs.jsonl"
    drafters = ["--drafter", "draft-model", "--drafter", "prompt-lookup", "--max-tokens", 24]
    bench = ["bench", *common, *drafters, "--json", result]
    endless = ["--repeats", 5000]

    status, _ = stop_at(start(*bench, *endless), journal, 8, signal.SIGKILL)
    assert status == -signal.SIGKILL
    first = lines(journal)
    assert len(first) >= 8

    kept = len(first)
    for number in (signal.SIGINT, signal.SIGTERM):
        status, shown = stop_at(start(*bench, *endless, "--resume"), journal, kept + 8, number)
        assert status == 128 + number, shown
        assert re.search(r"^warming up: baseline$", shown, re.MULTILINE), "a line of progress, though nobody looks"
        assert re.search(r"^\d+ %: repeat \d+ of 5000, prompt \d \(\w+\), ", shown, re.MULTILINE), shown
        assert "INCOMPLETE" in shown
        assert "speed-up over the baseline" in shown
        assert "with --resume goes on" in " ".join(shown.split())
        report = Report.model_validate_json(result.read_text())
        assert not report.complete
        assert len(report.contenders) == 3
        now = lines(journal)
        assert now[: len(first) - 1] == first[:-1], "what was kept is still there"
        assert len(now) > kept
        kept = len(now)

    done = start(*bench, "--repeats", 2, "--resume")
    shown, _ = done.communicate(timeout=120)
    assert done.returncode == 0, shown
    assert Report.model_validate_json(result.read_text()).complete
    assert lines(journal)[:kept] == now, "the two repeats were there already"

    other = CliRunner().invoke(app, [*map(str, bench), "--resume", "--temperature", "1"])
    assert other.exit_code == 2
    assert "not the same settings" in " ".join(other.output.split())


@pytest.mark.parametrize("command", ["tune", "run"])
def test_tuning_and_racing_over_many_prompts_are_continued_too(tmp_path: Path, common: list, command: str) -> None:
    journal = tmp_path / "work.jsonl"
    (tmp_path / "prompts.jsonl").write_text('{"category": "code", "prompt": "a b c a b c"}\n' * 300)
    more = {"tune": ["--max-tokens", 24, "--per-category", 0, "--repeats", 50], "run": ["--max-tokens", 24]}[command]
    asked = [command, *common, *more, "--work", journal]
    status, shown = stop_at(start(*asked), journal, 6, signal.SIGINT)
    assert status == 130, shown
    assert "0 %: " in shown
    assert "speed-up" in shown
    before = lines(journal)
    status, shown = stop_at(start(*asked, "--resume"), journal, len(before) + 2, signal.SIGTERM)
    assert status == 143, shown
    assert lines(journal)[: len(before)] == before
    pieces = [json.loads(line) for line in lines(journal)[1:]]
    keys = [(piece.get("contender"), piece["prompt"], piece.get("repeat"), piece.get("wall")) for piece in pieces]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("command", ["bench", "tune", "run"])
def test_a_prompt_that_is_too_long_is_named_before_anything_is_run(tmp_path: Path, common: list, command: str) -> None:
    every = ["a b", "a " * 70, "c"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"category": "code", "prompt": prompt}) for prompt in every))
    more = ["--work", tmp_path / "w.jsonl", *([] if command == "run" else ["--per-category", 0])]
    done = CliRunner().invoke(app, [command, *map(str, common), *map(str, more)])
    shown = " ".join(done.output.split())
    assert done.exit_code == 2, shown
    assert 'Prompt 2 of 3 (code, "a a a' in shown
    assert "reads at most 64" in shown
    assert not (tmp_path / "w.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_race_that_is_stopped_leaves_its_trace_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """In this process: the signal comes when the race has begun, and not a moment before."""
    target, file = save_model(tmp_path / "t"), tmp_path / "trace.json"

    def interrupted(*arguments: object):
        for at, event in enumerate(race(*arguments)):
            if at == 12:
                os.kill(os.getpid(), number)
            yield event

    monkeypatch.setattr("specdemo.terminal.race", interrupted)
    own = ["--target", str(target), "--device", "cpu", "--drafter", "prompt-lookup", "--max-tokens", "60"]
    done = CliRunner().invoke(app, ["run", "a b", *own, "--trace", str(file)])
    assert done.exit_code == 128 + number, done.output
    assert "Stopped." in done.output
    assert "tokens/pass" in done.output
    kept = Trace.from_json(file.read_bytes())
    assert 0 < len(kept.rounds("baseline")) < 59
    assert done.stdout == f"{kept.text('speculative')}\n"
