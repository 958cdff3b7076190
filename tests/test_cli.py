"""The command line as a newcomer types it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdemo.cli import app
from specdemo.events import Trace
from tests.test_loading import save_model

ROOT = Path(__file__).parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, inherited = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, env=inherited)


def run_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120)


def command_line(body: str) -> list[str]:
    """A process whose command line does this."""
    lines = ["import typer", "from specdemo.cli import start", "app = typer.Typer()", "@app.command()", "def it():"]
    return ["-c", "\n".join([*lines, *(f"    {line}" for line in body.split("\n")), "start(app, 'it')"])]


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
    assert "There is no device 'abacus' here" in done.stderr
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


@pytest.mark.parametrize(
    ("typed", "name"), [(["app.py"], "app.py"), (["-m", "specdemo", "run"], "python -m specdemo run")]
)
def test_usage_is_what_was_typed(typed: list[str], name: str) -> None:
    assert f"Usage: {name} [OPTIONS]" in run(*typed, "--help").stdout


def test_usage_in_a_program_is_the_projects_name() -> None:
    assert "Usage: specdemo run" in CliRunner().invoke(app, ["run", "--help"]).stdout


def test_where_no_terminal_is_no_sentence_is_folded(tmp_path: Path) -> None:
    folder = tmp_path / ("deep/" * 30)
    ours, typers = run("-m", "specdemo", "run", "hi", "--trace", f"{folder}/x"), run("-m", "specdemo", f"--{folder}")
    assert f"{folder}/x cannot be written: there is no folder {folder}." in ours.stderr
    assert str(folder) in typers.stderr


def test_a_terminal_without_unicode_gets_question_marks() -> None:
    done = run(*command_line("print('draft \u2190 text')"), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "draft ? text\n", "")


def test_a_pipe_gets_the_answer_and_nothing_else_in_whatever_encoding(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    own = ["--target", str(save_model(tmp_path / "target")), "--device", "cpu", "--drafter", "prompt-lookup"]
    asked = ["-m", "specdemo", "run", "Hello", *own, "--max-tokens", "40", "--trace", str(trace)]
    for encoding in ("utf-8", "ascii", "cp1252"):
        done = run(*asked, PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr
        answer = Trace.from_json(trace.read_bytes()).text("speculative")
        assert done.stdout == f"{answer.encode(encoding, 'replace').decode(encoding)}\n"
        assert "tokens/pass" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_was_computed_is_shown_whatever_becomes_of_the_outputs(tmp_path: Path) -> None:
    own = ["--target", str(save_model(tmp_path / "target")), "--device", "cpu", "--drafter", "prompt-lookup"]
    words = [sys.executable, "-m", "specdemo", "run", "Hello", *own, "--max-tokens", "4"]
    typed = shlex.join(words)
    for command, status, told in (
        (f"{typed} >&-", 0, "tokens/pass"),
        (f"{typed} | true; exit ${{PIPESTATUS[0]}}", None, "tokens/pass"),
        (f"{typed} > /dev/full", None, "The answer could not be written to standard output"),
        (f"{typed} --trace /dev/full > /dev/null", 2, "The trace could not be written to /dev/full"),
    ):
        done = run_shell(command)
        assert status in (None, done.returncode), done.stderr
        assert told in done.stderr
        assert "tokens/pass" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_home_behind_an_options_equals_sign_is_the_users(tmp_path: Path) -> None:
    """No shell expands it there, and `--out=~/draft` would make a folder that is called `~`."""
    code = command_line("print(where)")[1].replace("def it():", "def it(where: str = ''):")
    for typed, seen in (("--where=~/draft", f"{tmp_path}/draft"), ("--where=a~b", "a~b"), ("--where=~", f"{tmp_path}")):
        assert run("-c", code, typed, HOME=str(tmp_path)).stdout == f"{seen}\n"


def test_ctrl_c_while_a_thread_computes_ends_without_a_core_dump() -> None:
    """torch's threads abort the process where the interpreter ends under them."""
    done = run(
        *command_line("""import threading, time, torch
def compute():
    while True:
        (torch.ones(400, 400) @ torch.ones(400, 400)).sum().item()
threading.Thread(target=compute, daemon=True).start()
time.sleep(0.5)
print("told", end="")
raise KeyboardInterrupt""")
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "told", "")


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("app.py", "--port", str(port))
    assert done.returncode == 2
    assert f"cannot be served on port {port} of 127.0.0.1 (Address already in use)" in done.stderr


def test_a_port_in_the_environment_is_checked_like_one_that_was_typed() -> None:
    done = run("app.py", GRADIO_SERVER_PORT="abc")
    assert done.returncode == 2
    assert "GRADIO_SERVER_PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["run", "hi", "--rival", "abacus"], "no drafter 'abacus'"),
        (["run", "hi", "--pair", "smollm2-1.7b", "--drafter", "eagle"], "no EAGLE head"),
        (["bench", "--pair", "smollm2-1.7b", "--drafter", "medusa"], "no Medusa heads"),
        (["run", "--prompts", "assets/prompts.jsonl", "--trace", "t.json"], "one race"),
        (["run", "--prompts", "assets/prompts.jsonl", "--temperature", "nan"], "Temperature is nan"),
        (["bench", "--json", "same.json", "--plot", "same.json"], "named twice"),
        (["bench", "--prompts", "assets/prompts.jsonl", "--json", "assets/prompts.jsonl"], "named twice"),
    ],
)
def test_what_cannot_be_done_is_told_before_models_are_loaded(
    typed: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdemo.models.loading.load_pair", None)  # calling it would be a traceback
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2, done.exception
    assert why in done.stderr
