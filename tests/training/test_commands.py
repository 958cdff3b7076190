import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from specdemo.errors import UserError
from specdemo.models.tokens import fingerprint
from specdemo.training import jobs
from specdemo.training.commands import app
from specdemo.training.distill import Recipe
from specdemo.training.shards import Shard
from specdemo.training.target import load_target

SHAPE = {"vocab": 270, "width": 32, "layers": 1, "mlp": 32, "heads": 2, "kv_heads": 1}


def test_from_a_target_folder_to_a_measured_draft(folder, target, tmp_path):
    data, out, card = tmp_path / "data", tmp_path / "draft", tmp_path / "README.md"
    jobs.generate(str(folder), data, shards=1, rows=26, length=96, seed=1, device="cpu")
    recipe = Recipe(steps=4, tokens_per_step=192)
    jobs.draft(str(folder), data, out, tmp_path / "run", False, None, recipe, SHAPE, "cpu")
    facts = json.loads((out / "config.json").read_text())["specdemo"]
    assert facts["target_sha256"] == load_target(str(folder), "cpu").sha256
    assert facts["vocabulary_sha256"] == fingerprint(target.tokenizer)
    assert facts["trained"]["steps"] == 4

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "story", "prompt": "Go"}\n')
    card.write_text("<!-- results: begin --><!-- results: end -->")
    jobs.measure(out, str(folder), prompts, tmp_path / "answers.npz", tokens=8, card=card)
    assert re.search(r"\| story \| \d\.\d{3} \| \d\.\d\d \| \d\.\d{3} \|", card.read_text())


def test_training_without_text_says_how_to_write_some(folder, tmp_path):
    with pytest.raises(UserError, match="train generate"):
        jobs.draft(str(folder), tmp_path, tmp_path / "o", tmp_path / "r", False, None, Recipe(), SHAPE, "cpu")


def test_a_folder_without_weights_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        load_target(str(tmp_path), "cpu")


@pytest.mark.parametrize("command", ["generate", "label", "draft", "eagle", "medusa", "measure"])
def test_every_command_explains_itself(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "--target" in result.output


def test_text_with_known_temperatures_keeps_them_and_its_name(folder, tmp_path):
    ids = np.arange(12, dtype=np.uint16).reshape(2, 6)
    role = np.array([[0, 0, 1, 1, 0, 2]] * 2, np.uint8)
    np.savez(tmp_path / "asked.npz", ids=ids, role=role, temperature=np.array([0.0, 0.5], np.float16))
    np.savez(tmp_path / "other.npz", ids=ids, role=role)
    for name in ("asked", "other"):
        jobs.label(tmp_path / f"{name}.npz", str(folder), tmp_path / "data", "cpu")
    assert Shard.load(tmp_path / "data" / "asked-0000.npz").temperature.tolist() == [0.0, 0.5]
    assert np.isnan(Shard.load(tmp_path / "data" / "labelled-other-0000.npz").temperature).all()
