from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import LlamaConfig

from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel
from specdemo.training import generate as generation
from specdemo.training.dataset import Dataset
from specdemo.training.distill import Recipe, Trainer, rate
from specdemo.training.export import export
from specdemo.training.losses import distillation_loss
from specdemo.training.measure import Draft
from specdemo.training.student import Student, choose_vocabulary, make_config, project_embedding

RECIPE = Recipe(steps=30, tokens_per_step=320, report_every=10, validate_every=15, save_every=10, refresh_every=1000)


@pytest.fixture(scope="module")
def data(target, tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("shards")
    model = target.lean("cpu", torch.float32)
    list(generation.generate(model, target.tokenizer, folder, shards=1, rows=26, length=160, seed=2))
    return Dataset(folder)


@pytest.fixture
def student(target, data) -> Student:
    torch.manual_seed(1)
    vocab_ids = choose_vocabulary(data.counts(320), target.tokenizer, 280)
    student = Student(make_config(target.config, 280, 32, 2, 48, 2, 1), vocab_ids, 320)
    with torch.no_grad():
        student.embed_tokens.weight.copy_(project_embedding(target, vocab_ids, 32))
    return student


def test_the_vocabulary_holds_special_tokens_and_all_single_characters(target):
    vocab_ids = set(choose_vocabulary(np.zeros(320), target.tokenizer, 262).tolist())
    assert set(target.tokenizer.all_special_ids) <= vocab_ids
    assert set(target.tokenizer.encode("Az09\n {")) <= vocab_ids


def test_the_loss_and_its_gradient_are_those_of_plain_autograd():
    torch.manual_seed(0)
    hidden, head = torch.randn(300, 8), torch.randn(40, 8)
    ids = torch.stack([torch.randperm(40)[:4] for _ in range(300)])
    probs = torch.rand(300, 4).softmax(-1) * 0.9
    probs[:, 3] = 0  # a token outside the draft's vocabulary
    weights = torch.rand(300)

    def plain(hidden, head):
        logq = F.log_softmax(hidden @ head.T, dim=-1).gather(1, ids)
        rest_q = (1 - (logq.exp() * (probs > 0)).sum(-1)).clamp_min(1e-3)
        return ((-(probs * logq).sum(-1) - (1 - probs.sum(-1)) * rest_q.log()) * weights).sum()

    results = []
    for loss in (lambda h, e: distillation_loss(h, e, ids, probs, weights), plain):
        h, e = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        value = loss(h, e)
        value.backward()
        results.append((value.detach(), h.grad, e.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_learning_rate_rises_stays_and_ends_at_zero():
    recipe = Recipe(warmup=0.1, cooldown=0.4)
    factors = [rate(progress, recipe) for progress in (0.0, 0.05, 0.3, 0.6, 0.8, 1.0)]
    assert factors[0] < 0.02
    assert factors[1] < 0.6
    assert factors[2] == factors[3] == 1
    assert factors[4] == pytest.approx(0.5)
    assert factors[5] == 0


def test_training_lowers_the_loss(student, data, tmp_path):
    losses = []
    trainer = Trainer(student, data, RECIPE, tmp_path, torch.float32)
    trainer.run(lambda report: losses.append(report.loss))
    assert losses[-1] < 0.95 * losses[0]


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(student, data, target, tmp_path):
    start = {name: value.clone() for name, value in student.state_dict().items()}
    whole = Trainer(student, data, RECIPE, tmp_path / "whole", torch.float32)
    whole.run(lambda _: None)
    expected = {name: value.clone() for name, value in student.state_dict().items()}

    def kill_late(report):
        if report.step == 25:
            raise KeyboardInterrupt

    student.load_state_dict(start)
    killed = Trainer(student, data, replace(RECIPE, report_every=5), tmp_path / "parts", torch.float32)
    with pytest.raises(KeyboardInterrupt):
        killed.run(kill_late)
    student.load_state_dict(start)  # everything must come from the saved state of step 20
    resumed = Trainer(student, data, RECIPE, tmp_path / "parts", torch.float32)
    assert resumed.resume()
    assert resumed.step == 20
    resumed.run(lambda _: None)
    for name, value in student.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=0, rtol=0)


def test_an_exported_draft_computes_what_was_trained(student, target, tmp_path):
    export(student, tmp_path, {"target_sha256": target.sha256})
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["vocab_ids"].dtype == torch.int32
    with torch.no_grad():
        for parameter in student.parameters():  # the export rounds to bfloat16
            parameter.copy_(parameter.bfloat16().float())
        ids = torch.randint(0, 320, (1, 50), generator=torch.Generator().manual_seed(4))
        expected = student(ids) @ student.head.T
    config = LlamaConfig.from_pretrained(tmp_path)
    assert config.vocab_size == 281
    assert config.specdemo["target_sha256"] == target.sha256
    lean = LeanModel(config, weights, torch.device("cpu"), torch.float32)
    hidden = lean.forward(student.draft_ids[ids], KVCache(lean, 50))
    torch.testing.assert_close(lean.logits(hidden)[..., :280], expected, atol=1e-4, rtol=1e-4)


def test_tokens_outside_the_vocabulary_read_the_last_row(student, tmp_path):
    export(student, tmp_path, {})
    draft = Draft(tmp_path)
    outside = sorted(set(range(320)) - set(student.vocab_ids.tolist()))
    ids = np.array([outside[0], int(student.vocab_ids[7]), outside[-1]])
    assert draft.encode(ids).tolist() == [280, 7, 280] == student.draft_ids[torch.tensor(ids)].tolist()
