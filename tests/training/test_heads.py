"""Heads learn what they will do: what training simulates is what the drafters compute, and runs can be resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.cache import KVCache
from specdemo.models.heads import load_head, mismatch
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.measure import BUSY
from specdemo.models.tree import ROOT, Tree
from specdemo.training import eagle as eagle_training
from specdemo.training import features, head_jobs, jobs
from specdemo.training import generate as generation
from specdemo.training.dataset import Batch, Dataset
from specdemo.training.distill import Recipe, Trainer
from specdemo.training.export import export
from specdemo.training.medusa import Medusa
from specdemo.training.student import choose_vocabulary
from specdemo.training.target import load_target

TAPS = features.taps_of(2)
RECIPE = Recipe(steps=30, tokens_per_step=320, report_every=10, validate_every=15, save_every=10, depths=3, deepen=0.3)


@pytest.fixture(scope="module")
def data(target, tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("shards")
    model = target.lean("cpu", torch.float32)
    list(generation.generate(model, target.tokenizer, folder, shards=1, rows=26, length=160, seed=2))
    assert len(list(features.compute(model, folder, TAPS))) == 1
    assert not list(features.compute(model, folder, TAPS)), "what is there is not computed again"
    return Dataset(folder, features.folder_of(folder, TAPS))


@pytest.fixture
def eagle(target, data) -> eagle_training.Eagle:
    torch.manual_seed(1)
    vocab_ids = choose_vocabulary(data.counts(320), target.tokenizer, 280)
    head = head_jobs.eagle(0)(target, vocab_ids, data, TAPS)
    for parameter in head.parameters():
        parameter.data = parameter.data.bfloat16().float()  # as it is exported
    head.embedding = target.weights["model.embed_tokens.weight"]  # as it is read later: training rounds it
    return head


@pytest.fixture
def medusa(target, data) -> Medusa:
    torch.manual_seed(1)
    vocab_ids = choose_vocabulary(data.counts(320), target.tokenizer, 280)
    heads = Medusa(target, vocab_ids, heads=3, blocks=2)
    for parameter in heads.parameters():
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).bfloat16().float()
    return heads


@pytest.fixture
def model(target) -> LeanLanguageModel:
    info = ModelInfo(name="tiny", parameters=0, dtype="fp32", sha256=target.sha256)
    return LeanLanguageModel(target.lean("cpu", torch.float32), info, 320)


def batch_of(ids: list[int], states: torch.Tensor) -> Batch:
    """One row in which every token from the third on is learned."""
    where = torch.ones(1, len(ids) - 1, dtype=torch.bool)
    where[:, 0] = False
    nothing = torch.zeros(len(ids) - 2, 1)
    return Batch(torch.tensor([ids]), where, nothing, nothing, nothing, nothing, nothing, states[None])


def test_an_eagle_head_drafts_what_its_training_simulated(eagle, model, tmp_path) -> None:
    """Depth 0 from the target's states, depths 1 and 2 from its own, all of it as nodes of one tree."""
    export(eagle, tmp_path, {})
    head = load_head(tmp_path, model, torch.float32)
    ids = torch.randint(280, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    runner = model.runner(32, taps=TAPS)
    runner.prefill(ids)
    with torch.no_grad():
        depths = eagle.states(batch_of(ids, runner.features), 3, torch.float32)
        expected = [states @ eagle.head.T for states, _ in depths]
    text = 20  # tokens that the target has read; the head goes on along the true text
    cache = KVCache(head, 64)
    states = head.forward(head.states(runner.features[:text]), torch.tensor(ids[1 : text + 1]), cache)
    torch.testing.assert_close(head.logits(states), expected[0][:text], atol=1e-4, rtol=1e-4)
    first = head.forward(states[-1:], torch.tensor([ids[text + 1]]), cache, Tree((ROOT,)))
    torch.testing.assert_close(head.logits(first)[0], expected[1][text], atol=1e-4, rtol=1e-4)
    # Beside a second child of the first node stands the true one: it must see its own branch alone.
    tree = Tree((ROOT, 0, 0))
    pair = head.forward(first.expand(2, -1), torch.tensor([5, ids[text + 2]]), cache, tree)
    torch.testing.assert_close(head.logits(pair)[1], expected[2][text + 1], atol=1e-4, rtol=1e-4)


def test_medusa_heads_draft_what_their_training_simulated(medusa, model, tmp_path) -> None:
    export(medusa, tmp_path, {})
    heads = load_head(tmp_path, model, torch.float32)
    ids = torch.randint(280, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    runner = model.runner(32, taps=(*TAPS, model.depth + 1))
    runner.prefill(ids)
    before, after = runner.features[:, : len(TAPS) * 32], runner.features[:, len(TAPS) * 32 :]
    with torch.no_grad():
        depths = medusa.states(batch_of(ids, before), 3, torch.float32)
    for at in (4, 19):
        ours = heads.logits(after[at])
        for head, (states, lines) in enumerate(depths):
            (line,) = (lines == at + head).nonzero()[:, 0].tolist()  # position at + 2 + head, counted from the third
            torch.testing.assert_close(ours[head], states[line] @ medusa.head.T, atol=1e-4, rtol=1e-4)


def test_training_lowers_the_loss_and_deeper_matches_count(eagle, data, tmp_path) -> None:
    reports = []
    Trainer(eagle, data, replace(RECIPE, deepen=0.0), tmp_path, torch.float32).run(reports.append)
    assert reports[-1].loss < 0.8 * reports[0].loss
    assert len(reports[-1].matches) == 3
    first, second, third = reports[-1].matches
    assert reports[-1].tokens_per_pass == pytest.approx(1 + first + first * second + first * second * third)


def test_a_killed_run_resumes_where_it_was(eagle, data, tmp_path) -> None:
    start = {name: value.clone() for name, value in eagle.state_dict().items()}
    Trainer(eagle, data, RECIPE, tmp_path / "whole", torch.float32).run(lambda _: None)
    expected = {name: value.clone() for name, value in eagle.state_dict().items()}
    eagle.load_state_dict(start)
    killed = Trainer(eagle, data, RECIPE, tmp_path / "parts", torch.float32)
    while killed.step < 20:
        killed.train_step()
    killed.save()
    eagle.load_state_dict(start)
    resumed = Trainer(eagle, data, RECIPE, tmp_path / "parts", torch.float32)
    assert resumed.resume()
    resumed.run(lambda _: None)
    for name, value in eagle.state_dict().items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_from_a_target_folder_to_a_head_that_knows_its_target(kind, folder, target, model, tmp_path) -> None:
    make = head_jobs.eagle(0) if kind == "eagle" else head_jobs.medusa(2, 1)
    data, out = tmp_path / "data", tmp_path / "head"
    jobs.generate(str(folder), data, shards=1, rows=26, length=96, seed=1, device="cpu")
    recipe = Recipe(steps=4, tokens_per_step=192, depths=2)
    head_jobs.train_head(make, str(folder), data, out, tmp_path / "run", False, 270, recipe, "cpu")
    facts = json.loads((out / "config.json").read_text())["specdemo"]
    card = (out / "README.md").read_text()
    assert facts["target_sha256"] in card
    assert str(facts["data"]["assistant_tokens"]) in card.replace(",", "")
    load_head(out, model, torch.float32)
    assert "other weights" in mismatch(out, model)  # the folder's file is not the fixture's hash
    same = LeanLanguageModel(model.model, model.info.model_copy(update={"sha256": facts["target_sha256"]}), 320)
    assert mismatch(out, same) == ""
    assert all(value.dtype in (torch.bfloat16, torch.int32) for value in load_file(out / "model.safetensors").values())
    head_jobs.train_head(make, str(folder), data, out, tmp_path / "run", True, 270, replace(recipe, steps=6), "cpu")
    assert torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"] == 6


def test_the_shipped_heads_are_small_and_belong_to_the_default_target(default_pair) -> None:
    for kind in ("eagle", "medusa"):
        folder = Path(__file__).parents[2] / "assets" / kind
        assert sum(file.stat().st_size for file in folder.iterdir()) < 40e6
        assert not mismatch(folder, default_pair.target)
        assert (folder / "README.md").read_text().count(default_pair.target.info.sha256) == 1
    assert set(default_pair.warnings) <= {BUSY}


# --- Mistakes ---


def test_text_and_states_of_another_target_are_refused(folder, target, tmp_path) -> None:
    jobs.generate(str(folder), tmp_path, shards=1, rows=26, length=96, seed=1, device="cpu")
    jobs.claim(tmp_path, load_target(str(folder), "cpu"))
    with pytest.raises(UserError, match="another target"):
        jobs.claim(tmp_path, target)


def test_a_run_of_another_shape_is_not_resumed_and_a_finished_one_is_exported(folder, data, tmp_path) -> None:
    work, recipe = tmp_path / "run", Recipe(steps=3, tokens_per_step=192, depths=2)

    def train(make, out: str, resume: bool, recipe: Recipe = recipe) -> None:
        head_jobs.train_head(make, str(folder), data.folder, tmp_path / out, work, resume, 270, recipe, "cpu")

    train(head_jobs.eagle(0), "first", False)
    for make in (head_jobs.eagle(16), head_jobs.medusa(2, 1)):
        with pytest.raises(UserError, match="--work"):
            train(make, "other", True)
    train(head_jobs.eagle(0), "again", True)
    steps = json.loads((tmp_path / "again" / "config.json").read_text())["specdemo"]["trained"]["steps"]
    assert steps == 3
    train(head_jobs.eagle(0), "first", True, replace(recipe, steps=5))
    steps = json.loads((tmp_path / "first" / "config.json").read_text())["specdemo"]["trained"]["steps"]
    assert f"| training | {steps} steps" in (tmp_path / "first" / "README.md").read_text()
    (tmp_path / "first" / "README.md").write_text("by hand")
    train(head_jobs.eagle(0), "first", True, replace(recipe, steps=6))
    assert (tmp_path / "first" / "README.md").read_text() == "by hand"


def test_rows_longer_than_a_head_reads_are_not_joined(eagle, data) -> None:
    for join in (1, 2, 4):
        batch = data.draw(eagle, 1280, join, np.random.default_rng(0))
        assert batch.ids.shape[1] <= eagle.longest == 512
        assert batch.ids.shape[1] == 160 * min(join, 3)
