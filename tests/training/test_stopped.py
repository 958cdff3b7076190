"""Training that is stopped, as real processes: it says how far it is, keeps what it has, and goes on from there."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdemo.longwork import Interrupted, Work
from specdemo.training import features, jobs
from specdemo.training import generate as generation
from specdemo.training import measure as measuring

ROOT = Path(__file__).parents[2]
SHAPE = ["--vocab", 270, "--width", 32, "--layers", 1, "--mlp", 32, "--heads", 2, "--kv-heads", 1, "--tokens", 192]


def stop_behind(pattern: str, number: int, *arguments: object) -> tuple[int, str]:
    """Run `train ...`, send the signal behind the first line that has the pattern; status and output."""
    command = [sys.executable, "-m", "specdemo", "train", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        shown = []
        for line in process.stdout:
            shown.append(line)
            if re.search(pattern, line):
                process.send_signal(number)
                pattern = r"^\b$"  # once
    return process.returncode, "".join(shown)


def test_a_training_that_is_stopped_goes_on_at_the_step_where_it_was(folder, tmp_path):
    data = tmp_path / "data"
    jobs.generate(str(folder), data, shards=1, rows=26, length=96)
    asked = ["draft", "--target", folder, "--data", data, "--shards", 1, "--work", tmp_path / "run", *SHAPE]
    asked += ["--out", tmp_path / "out", "--minutes", 60]
    status, shown = stop_behind("0 %: training, step 0", signal.SIGTERM, *asked)
    assert status == 143, shown
    assert "--resume goes on from there" in " ".join(shown.split())
    step = torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"]
    status, shown = stop_behind("never", signal.SIGINT, *asked, "--resume", "--steps", step + 2)
    assert status == 0, shown
    assert f"Resumed at step {step}." in shown
    assert f"step {step + 2} (100%)" in shown


def test_text_that_is_stopped_keeps_its_whole_shards(folder, tmp_path):
    asked = ["generate", "--target", folder, "--data", tmp_path, "--rows", 4, "--length", 96, "--shards", 9999]
    status, shown = stop_behind("^wrote", signal.SIGINT, *asked)
    assert status == 130, shown
    assert "0 %: writing shard 1 of 9999" in shown
    assert list(tmp_path.glob("generated-1-*.npz"))
    assert not list(tmp_path.glob("*.tmp"))


def test_every_long_loop_can_be_stopped_inside_a_piece(folder, target, tmp_path):
    """Whatever a stop leaves behind, the same work then ends as if nothing had been."""
    model, data = target.lean("cpu", torch.float32), tmp_path / "data"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "code", "prompt": "Hi"}\n')
    stopped = Work()
    stopped.stop.set()
    loops = [
        lambda say: list(generation.generate(model, target.tokenizer, data, 1, 26, 96, 1, say=say)),
        lambda say: list(features.compute(model, data, features.taps_of(2), say)),
        lambda say: measuring.record_answers(model, target.tokenizer, prompts, 8, say=say),
    ]
    for loop in loops:
        with pytest.raises(Interrupted):
            loop(stopped)
        heard = []
        assert loop(lambda message, share, heard=heard: heard.append(share))
        assert heard == sorted(heard)
        assert 0 <= heard[0] <= heard[-1] <= 1
