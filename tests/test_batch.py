"""Several texts at once: each row is what it would be alone."""

from __future__ import annotations

import pytest
import torch

from specdemo.decoding.batch import BatchRequest, decode_batch
from specdemo.errors import UserError
from specdemo.models.loading import LoadedPair
from specdemo.settings import SamplerSettings
from tests.exact import joint_distribution, p_value
from tests.models.test_lean import replayable
from tests.tiny import Tiny

TARGET, DRAFT = Tiny(8, seed=1, max_length=256), Tiny(8, seed=2, max_length=256)
GREEDY = SamplerSettings(temperature=0)
PROMPTS = [[3, 1, 4, 1, 5], [2, 6, 5, 3, 5, 2, 6, 5, 3], [7]]


def oracle(prompt: list[int], tokens: int) -> list[int]:
    out = TARGET.oracle.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_every_row_writes_its_own_greedy_text(gamma: int) -> None:
    run = decode_batch(TARGET.lean, BatchRequest(PROMPTS, GREEDY, 40), DRAFT.lean if gamma else None, gamma)
    assert run.texts == [oracle(prompt, 40) for prompt in PROMPTS]


def test_recorded_rows_write_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several lengths replay one pass; a second batch uses the first one's recordings."""
    models = Tiny(8, seed=1, max_length=256).lean, Tiny(8, seed=2, max_length=256).lean
    made: list[int] = []
    for model in models:
        monkeypatch.setattr(model, "_recorder", lambda: lambda once: (made.append(1), replayable(once))[1])
    for n in range(2):
        run = decode_batch(models[0], BatchRequest(PROMPTS, GREEDY, 40), models[1], 3)
        assert run.texts == [oracle(prompt, 40) for prompt in PROMPTS]
        assert len(made) == 3, n  # the target's pass, and the draft's over one token and two


def test_a_draft_equal_to_the_target_is_accepted_in_every_row() -> None:
    """A token missing in the draft's cache, or a row one place off, would refuse some."""
    run = decode_batch(TARGET.lean, BatchRequest(PROMPTS[:2], GREEDY, 60), TARGET.lean, 3)
    assert run.accepted == run.tested
    assert run.passes == 15


def test_rows_advance_by_their_own_lengths() -> None:
    run = decode_batch(TARGET.lean, BatchRequest(PROMPTS, GREEDY, 40), DRAFT.lean, 3)
    assert 40 / 4 <= run.passes < 40
    assert 0 < run.accepted < run.tested


def test_alpha_of_a_batch_is_accepted_over_tested() -> None:
    """Counted again from single rows: drafts behind a rejection were never tested."""
    together = decode_batch(TARGET.lean, BatchRequest(PROMPTS[:2], GREEDY, 40), DRAFT.lean, 3)
    alone = [decode_batch(TARGET.lean, BatchRequest([prompt], GREEDY, 40), DRAFT.lean, 3) for prompt in PROMPTS[:2]]
    assert together.tested == sum(run.tested for run in alone)
    assert together.accepted == sum(run.accepted for run in alone)
    assert together.tested < 3 * sum(run.passes for run in alone)


def test_rows_of_one_prompt_are_drawn_independently() -> None:
    """With shared uniforms two rows would write the same text every time."""
    sampler = SamplerSettings(temperature=1.0)
    same = 0
    for seed in range(60):
        request = BatchRequest([PROMPTS[0]] * 2, sampler, 6, seed=seed)
        one, other = decode_batch(TARGET.lean, request, DRAFT.lean, 2).texts
        same += one == other
    assert same < 20


def test_rows_draft_independently() -> None:
    """A target that always agrees shows the drafts themselves."""
    sampler = SamplerSettings(temperature=1.0)
    request = [BatchRequest([PROMPTS[0]] * 2, sampler, 4, seed=seed) for seed in range(60)]
    pairs = [decode_batch(TARGET.lean, one, TARGET.lean, 3).texts for one in request]
    assert sum(one[:3] == other[:3] for one, other in pairs) < 30


def test_a_row_that_ends_early_ends_alone() -> None:
    texts = [oracle(prompt, 40) for prompt in PROMPTS]
    eos = next(token for token in range(8) if (token in texts[0]) and texts[0].index(token) > 2)
    run = decode_batch(TARGET.lean, BatchRequest(PROMPTS, GREEDY, 40, frozenset({eos})), DRAFT.lean, 3)
    for text, full in zip(run.texts, texts, strict=True):
        assert text == (full[: full.index(eos) + 1] if eos in full else full)


@pytest.mark.parametrize("gamma", [0, 2])
def test_every_row_is_distributed_as_the_target(gamma: int) -> None:
    target, draft = Tiny(5, seed=1), Tiny(5, seed=2, layers=1)
    sampler, prompts = SamplerSettings(temperature=0.8), [[0, 1, 2, 0, 1], [3, 1, 2]]
    samples: list[list[tuple[int, ...]]] = [[], []]
    for seed in range(1200):
        request = BatchRequest(prompts, sampler, 4, seed=seed)
        run = decode_batch(target.lean, request, draft.lean if gamma else None, gamma)
        for row, text in enumerate(run.texts):
            samples[row].append(tuple(text))
    for prompt, texts in zip(prompts, samples, strict=True):
        assert p_value(texts, joint_distribution(target.oracle, prompt, 4, sampler)) > 1e-3


def test_a_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="room for 305 tokens"):
        decode_batch(TARGET.lean, BatchRequest([[1] * 4], GREEDY, 300), None)


def test_the_real_pair_writes_in_a_batch_what_it_writes_alone(default_pair: LoadedPair) -> None:
    prompts = [default_pair.tokens.encode(text, chat=True) for text in ("Name three rivers.", "What is 12 + 7?")]
    together = decode_batch(default_pair.target, BatchRequest(prompts, GREEDY, 30), default_pair.draft, 4).texts
    alone = [decode_batch(default_pair.target, BatchRequest([prompt], GREEDY, 30)).texts[0] for prompt in prompts]
    assert together == alone
