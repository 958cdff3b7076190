"""The command line as a newcomer types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdemo.cli import app
from specdemo.events import Trace
from tests.test_loading import save_model

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_app_help_names_the_options_for_own_pairs() -> None:
    done = run("app.py", "--help")
    assert done.returncode == 0
    assert "--target" in done.stdout
    assert "--draft" in done.stdout


@pytest.mark.parametrize("command", [["serve"], ["convert"], ["train", "draft"], ["train", "generate"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_a_race_in_the_terminal_offers_a_rival() -> None:
    assert "--rival" in CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout


def test_a_mistake_ends_in_one_sentence_without_a_traceback() -> None:
    done = run("app.py", "--device", "abacus")
    assert done.returncode == 2
    assert "There is no device 'abacus' here" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_half_an_emoji_on_the_command_line_is_a_replacement_character(tmp_path: Path) -> None:
    target, trace = save_model(tmp_path / "target"), tmp_path / "trace.json"
    own = ["--target", str(target), "--device", "cpu", "--drafter", "prompt-lookup", "--max-tokens", "4"]
    done = CliRunner().invoke(app, ["run", "\ud83d and \udcff", *own, "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert Trace.from_json(trace.read_bytes()).settings.prompt == "\ufffd and \ufffd"


def test_a_file_of_prompts_may_hold_half_an_emoji_and_brackets(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(r'{"category": "[/odd] \ud83d", "prompt": "a \ude00"}')
    own = ["--target", str(save_model(tmp_path / "target")), "--device", "cpu", "--drafter", "prompt-lookup"]
    done = CliRunner().invoke(app, ["run", "--prompts", str(file), *own, "--max-tokens", "4"])
    assert done.exit_code == 0, done.output
    assert "[/odd] \ufffd" in done.output
