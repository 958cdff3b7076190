import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from specdemo.errors import UserError
from specdemo.models.tokens import fingerprint
from specdemo.training import jobs
from specdemo.training.commands import app
from specdemo.training.distill import Recipe
from specdemo.training.measure import Draft, load_answers
from specdemo.training.shards import Shard
from specdemo.training.student import Shape, Student, make_config
from specdemo.training.target import load_target

SHAPE = Shape(vocab=270, width=32, layers=1, mlp=32, heads=2, kv_heads=1)


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


def test_training_takes_as_many_processors_as_there_are(folder, tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr("specdemo.models.device.use_cpu_quota", lambda: used.append(True))
    monkeypatch.setattr(jobs, "generate", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["generate"]).exit_code == 0
    assert used


def test_measuring_finds_the_shipped_prompts_and_draft_from_anywhere(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(jobs, "measure", lambda *given: asked.append(given))
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["measure"]).exit_code == 0
    ((draft, _, prompts, *_),) = asked
    assert (draft / "config.json").is_file()
    assert prompts.is_file()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"width": 65, "heads": 3}, "width 65 cannot be shared by 3 heads"),
        ({"heads": 2, "kv_heads": 3}, "Kv heads is 3"),
        ({"heads": 4, "kv_heads": 3}, "4 heads cannot share 3"),
        ({"layers": 0}, "Layers is 0"),
        ({"width": 10**30}, "Width is 1000"),
    ],
)
def test_a_shape_that_cannot_be_computed_is_refused(other, why):
    with pytest.raises(UserError, match=why):
        Shape(**vars(SHAPE) | other)


@pytest.mark.parametrize(
    "other", [{"muon_rate": float("nan")}, {"time_limit": float("nan")}, {"steps": 0}, {"seed": -1}]
)
def test_a_recipe_that_would_not_train_is_refused(other):
    with pytest.raises(UserError, match="it should be"):
        Recipe(**other)


def test_a_start_is_a_run_of_the_same_shape(folder, target, tmp_path):
    with pytest.raises(UserError, match="no run of a draft model"):
        jobs.check_start(tmp_path, SHAPE)
    (tmp_path / "state.pt").write_bytes(b"something else")
    with pytest.raises(UserError, match="no run of a draft model"):
        jobs.check_start(tmp_path, SHAPE)
    student = Student(make_config(target.config, **vars(SHAPE)), torch.arange(SHAPE.vocab), 320)
    torch.save({"config": student.config.to_dict()}, tmp_path / "state.pt")
    jobs.check_start(tmp_path, replace(SHAPE, vocab=300))
    with pytest.raises(UserError, match="Add: --layers 1"):
        jobs.check_start(tmp_path, replace(SHAPE, layers=2))


LABELLED = {"ids": np.ones((2, 6), np.uint16), "role": np.array([[0, 0, 1, 1, 0, 2]] * 2, np.uint8)}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"ids": np.full((2, 6), 999)}, "does not know"),
        ({"ids": np.ones((2, 600), int), "role": np.zeros((2, 600), int)}, "at most 512"),
        ({"ids": np.ones((2, 6))}, "no text to label"),
        ({"ids": np.full((2, 6), -1)}, "no text to label"),
        ({"ids": np.ones((0, 6), int), "role": np.ones((0, 6), int)}, "no text to label"),
        ({"role": np.ones((3, 6), int)}, "no text to label"),
        ({"role": np.ones((2, 6), int)}, "no text to label"),
        ({"role": np.full((2, 6), 3)}, "no text to label"),
        ({"temperature": np.zeros(3)}, "no text to label"),
    ],
)
def test_text_that_cannot_be_labelled_is_refused_before_the_target_is_read(folder, tmp_path, monkeypatch, other, why):
    monkeypatch.setattr("specdemo.training.target.read_weights", None)  # calling it would be a traceback
    np.savez(tmp_path / "text.npz", **LABELLED | other)
    with pytest.raises(UserError, match=why):
        jobs.label(tmp_path / "text.npz", str(folder), tmp_path / "data", "cpu")


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }}", "{{ raise_exception('no') }}"])
def test_a_target_that_cannot_chat_is_refused_before_its_weights_are_read(folder, tmp_path, monkeypatch, template):
    monkeypatch.setattr("specdemo.training.target.read_weights", None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(UserError, match="no chat template"):
        jobs.generate(str(tmp_path), tmp_path / "data", shards=1)


def test_conversations_are_longer_than_the_template(folder, tmp_path):
    with pytest.raises(UserError, match="too few"):
        jobs.generate(str(folder), tmp_path, shards=1, rows=2, length=4)


def test_answers_and_drafts_of_another_kind_are_refused(folder, tmp_path):
    np.savez(tmp_path / "text.npz", **LABELLED)
    np.savez(tmp_path / "nothing.npz")
    for name in ("text.npz", "nothing.npz"):
        with pytest.raises(UserError, match="no recorded answers"):
            load_answers(tmp_path / name)
    for other in (tmp_path, folder):
        with pytest.raises(UserError, match="no draft model"):
            Draft(other)
    with pytest.raises(UserError, match="no shard"):
        Shard.load(tmp_path / "text.npz")


def test_a_card_without_a_place_for_results_is_refused_before_anything_is_measured(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("<!-- results: end --> <!-- results: begin -->")
    with pytest.raises(UserError, match="results: begin"):
        jobs.measure(tmp_path, "nowhere", tmp_path / "p.jsonl", tmp_path / "a.npz", 8, card)
