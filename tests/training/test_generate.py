import copy
import random

import numpy as np
import pytest
import torch

from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel
from specdemo.training import generate as generation
from specdemo.training import seeds
from specdemo.training.questions import Composed, Listed
from specdemo.training.shards import ASSISTANT, FORCED, USER, Shard


@pytest.fixture(scope="module")
def model(target):
    return target.lean("cpu", torch.float32)


@pytest.fixture(scope="module")
def shard(target, model):
    return generation.generate_batch(model, generation.Script(target.tokenizer, seed=3), rows=6, length=400)


def test_every_row_opens_with_the_system_free_template_and_a_known_opening(target, shard):
    for row, category in zip(shard.ids, shard.category, strict=True):
        text = target.tokenizer.decode(row.tolist())
        assert text.startswith("<|im_start|>user\n")
        opening = text.removeprefix("<|im_start|>user\n")
        fixed = [o.split("{")[0] for o in seeds.OPENINGS[list(seeds.CATEGORIES)[category]]]
        assert any(opening.startswith(start) for start in fixed)


def test_sampled_tokens_stand_only_inside_their_speakers_turn(target, shard):
    for ids, role in zip(shard.ids, shard.role, strict=True):
        text = ""
        for token, speaker in zip(ids.tolist(), role.tolist(), strict=True):
            if speaker != FORCED:
                header = text.rsplit("<|im_start|>", 1)[1]
                assert "<|im_end|>" not in header
                assert header.startswith("assistant\n" if speaker == ASSISTANT else "user\n")
            text += target.tokenizer.decode([token])
    assert (shard.role == ASSISTANT).any()
    assert (shard.role == USER).any()


def test_no_turn_is_longer_than_its_limit(target, shard):
    end = target.tokenizer.eos_token_id
    for ids, role, category in zip(shard.ids, shard.role, shard.category, strict=True):
        limit = {ASSISTANT: generation.MAX_ANSWER, USER: list(seeds.CATEGORIES.values())[category]}
        for speaker in (ASSISTANT, USER):
            run = 0
            for token, at in zip(ids.tolist(), role.tolist(), strict=True):
                run = run + 1 if at == speaker else 0
                assert run <= limit[speaker]
                if token == end:
                    run = 0


def test_stored_predictions_are_the_targets(model, shard):
    ids = torch.tensor(shard.ids[:1].astype(np.int64))
    logprobs = model.logits(model.forward(ids, KVCache(model, 400)))[0].log_softmax(-1)
    sampled = np.flatnonzero(shard.role[0] > 0)
    expected = logprobs[sampled - 1].topk(16)
    count = len(sampled)
    torch.testing.assert_close(torch.tensor(shard.top_logprobs[:count]).float(), expected.values, atol=5e-3, rtol=5e-3)
    greedy = shard.temperature[0] == 0
    assistant = shard.role[0][sampled] == ASSISTANT
    assert not greedy or (shard.top_ids[:count, 0] == shard.ids[0][sampled])[assistant].all()


def test_labelling_finds_what_generation_stored(model, shard):
    again = generation.label(model, torch.tensor(shard.ids.astype(np.int64)), torch.tensor(shard.role))
    np.testing.assert_allclose(again.top_logprobs.astype(float), shard.top_logprobs.astype(float), atol=1e-2)


def test_greedy_rows_take_the_first_candidate_and_warm_rows_do_not_always():
    logprobs = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)
    assert (generation.choose(logprobs, torch.zeros(4000), generator) == 0).all()
    counts = generation.choose(logprobs, torch.ones(4000), generator).bincount(minlength=3) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.2]), atol=0.03, rtol=0)


def test_blockwise_top_tokens_equal_topk():
    logits = torch.randn(5, 64 * 40, generator=torch.Generator().manual_seed(1))
    found = logits.gather(1, generation._topk_by_blocks(logits, 12)).sort(descending=True).values
    assert torch.equal(found, logits.topk(12).values)


def test_a_loop_is_seen_and_prose_is_not():
    assert generation.is_loop([5, 9] + [1, 2, 3] * 12)
    assert not generation.is_loop([1, 2, 3] * 11)  # shorter than the window
    assert not generation.is_loop([1, 2, 3] * 12 + [4])


def test_an_interrupted_generation_continues_where_it_stopped(target, model, tmp_path):
    run = lambda shards: list(generation.generate(model, target.tokenizer, tmp_path, shards, 2, 80, seed=5))  # noqa: E731
    assert len(run(1)) == 1
    first = Shard.load(tmp_path / "generated-5-0000.npz").ids
    assert len(run(2)) == 1
    assert np.array_equal(first, Shard.load(tmp_path / "generated-5-0000.npz").ids)
    assert not np.array_equal(first, Shard.load(tmp_path / "generated-5-0001.npz").ids)


def test_every_opening_fills_its_slots():
    rng = random.Random(0)
    for category in seeds.CATEGORIES:
        for _ in range(300):
            text = seeds.draw_opening(category, rng)
            assert text.strip()
            assert "{" not in text


def test_listed_questions_are_asked_word_for_word_and_only_answers_are_sampled(target, model):
    asks = Listed([("code", "Write a loop."), ("odd", "Who are you?")])
    shard = generation.generate_batch(model, generation.Script(target.tokenizer, 1, asks), rows=4, length=60)
    for ids, role, category in zip(shard.ids, shard.role, shard.category, strict=True):
        question = {0: "Write a loop.", len(seeds.CATEGORIES): "Who are you?"}[int(category)]
        assert target.tokenizer.decode(ids).startswith(
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert USER not in role
        assert ASSISTANT in role


@pytest.mark.parametrize("texts", [[], ["A text."]])
def test_composed_questions_have_no_open_slots(texts):
    rng, asks = random.Random(0), Composed(texts)
    for category in asks.categories:
        drawn = {asks.draw(category, rng) for _ in range(200)}
        assert len(drawn) > (5 if category == "summary" and texts else 50)
        assert not any("{" in text for text in drawn)


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, np.uint16), (151_935, np.uint32)])
def test_ids_of_large_vocabularies_survive_a_shard(largest, dtype, tmp_path):
    ids = torch.tensor([[1, largest]])
    role = torch.tensor([[0, ASSISTANT]], dtype=torch.uint8)
    listed = torch.full((1, 2, 16), largest, dtype=torch.int32)
    Shard.of(ids, role, listed, torch.zeros(1, 2, 16).half(), [0], [0.0]).save(tmp_path / "s.npz")
    back = Shard.load(tmp_path / "s.npz")
    assert back.ids.tolist() == ids.tolist()
    assert back.top_ids.max() == largest
    assert back.ids.dtype == dtype


def test_candidates_are_scored_by_the_output_layer_of_a_target_that_has_its_own(target):
    torch.manual_seed(3)
    config = copy.deepcopy(target.config)
    config.tie_word_embeddings = False
    weights = target.weights | {"lm_head.weight": torch.randn(320, 32)}
    model = LeanModel(config, dict(weights), torch.device("cpu"), torch.float32)
    hidden = torch.randn(7, 32)
    ids, logprobs = generation.top_candidates(model, hidden, 16)
    expected = model.logits(hidden).log_softmax(-1).topk(16)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(logprobs, expected.values, atol=1e-4, rtol=1e-4)
