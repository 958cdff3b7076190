"""The real default pair against transformers itself."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdemo.drafters import DRAFTERS
from specdemo.events import GreedyCheck, Lane, LaneEvent, RaceEvent, Round
from specdemo.metrics import RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.models.wheel import default_target
from specdemo.race import compare_greedy, race
from specdemo.settings import Settings

TOKENS = 100
PROMPTS_PER_CATEGORY = 2  # of six categories

log = logging.getLogger(__name__)


def prompts() -> list[str]:
    lines = (Path(__file__).parents[1] / "assets" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    by_category = itertools.groupby(items, key=lambda item: item["category"])
    return [item["prompt"] for _, group in by_category for item in itertools.islice(group, PROMPTS_PER_CATEGORY)]


@pytest.fixture(scope="module")
def oracle() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(default_target()).eval()


@pytest.fixture(scope="module")
def greedy_texts(oracle: PreTrainedModel, default_pair: LoadedPair) -> dict[str, list[int]]:
    """What transformers.generate says to every prompt."""
    texts = {}
    for prompt in prompts():
        ids = default_pair.tokens.encode(prompt, chat=True)
        out = oracle.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)
        texts[prompt] = out[0, len(ids) :].tolist()
    return texts


def run(default_pair: LoadedPair, **values) -> Iterator[RaceEvent]:
    settings = Settings.checked(**{"mode": "speculative", "record": False, "max_tokens": TOKENS, **values})
    return race(default_pair, settings, threading.Event())


def ids(events: Iterator[RaceEvent], lane: Lane = "speculative") -> list[int]:
    """The lane's text. (Which lane moves next is a matter of time, so their order says nothing.)"""
    own = [event.event for event in events if isinstance(event, LaneEvent) and event.lane == lane]
    return [token.id for event in own if isinstance(event, Round) for token in event.emitted]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_speculative_text_is_what_transformers_generates(
    drafter: str, default_pair: LoadedPair, greedy_texts: dict[str, list[int]]
) -> None:
    assert len(greedy_texts) >= 12
    slow = drafter == "early-exit"  # slower than no drafter at all: a few prompts of each kind will do
    for prompt, expected in list(greedy_texts.items())[:: 3 if slow else 1]:
        require_same(default_pair, prompt, expected, ids(run(default_pair, prompt=prompt, drafter=drafter, gamma=4)))


@pytest.mark.parametrize("shape", [{"depth": 2, "nodes": 5}, {"depth": 7, "nodes": 24}, {"auto_gamma": True}])
@pytest.mark.parametrize("drafter", ["eagle", "medusa"])
def test_every_tree_shape_writes_that_text_too(
    drafter: str, shape: dict, default_pair: LoadedPair, greedy_texts: dict[str, list[int]]
) -> None:
    for prompt, expected in list(greedy_texts.items())[:: PROMPTS_PER_CATEGORY * 2]:  # of three categories
        require_same(default_pair, prompt, expected, ids(run(default_pair, prompt=prompt, drafter=drafter, **shape)))


def require_same(default_pair: LoadedPair, prompt: str, expected: list[int], text: list[int]) -> None:
    """A near-tie is logged and passes."""
    context = default_pair.tokens.encode(prompt, chat=True)
    check = compare_greedy(default_pair.target, context, expected, text)
    assert check.verdict in ("identical", "near_tie"), (prompt, check)
    if check.verdict == "near_tie":
        log.warning("near-tie at token %s (gap %.1e): %s", check.position, check.gap, prompt[:50])
    else:
        assert len(text) == len(expected)


def test_a_wrong_token_would_be_called_a_bug(default_pair: LoadedPair, greedy_texts: dict[str, list[int]]) -> None:
    prompt, expected = next(iter(greedy_texts.items()))
    wrong = [*expected[:10], (expected[10] + 1) % 1000, *expected[11:]]
    check = compare_greedy(default_pair.target, default_pair.tokens.encode(prompt, chat=True), expected, wrong)
    assert isinstance(check, GreedyCheck)
    assert (check.verdict, check.position) == ("different", 10)


def test_logits_after_rollback_equal_those_of_a_fresh_prefill(default_pair: LoadedPair) -> None:
    prompt = default_pair.tokens.encode("Tell me about the tides.", chat=True)
    used, fresh = default_pair.target.runner(200), default_pair.target.runner(200)
    used.prefill(prompt)
    used.forward([100, 200, 300, 400, 500])
    used.rollback(len(prompt) - 2)
    fresh.prefill(prompt[:-2])
    torch.testing.assert_close(used.forward([42, 43]), fresh.forward([42, 43]), atol=2e-3, rtol=1e-3)


def test_the_draft_keeps_its_cache_right(default_pair: LoadedPair) -> None:
    """Its proposals after many rounds equal those of a draft that has read the same text afresh."""
    settings = {"prompt": "Write a short story about a lighthouse.", "drafter": "draft-model", "gamma": 4}
    events = list(run(default_pair, **settings, max_tokens=60))
    context = default_pair.tokens.encode(settings["prompt"], chat=True)
    for event in events:
        if not (isinstance(event, LaneEvent) and isinstance(event.event, Round)) or not event.event.drafted:
            continue
        fresh = default_pair.draft.runner(len(context) + 1)
        best = int(fresh.forward(context)[-1].argmax())
        assert event.event.drafted[0].id == int(default_pair.draft.vocab_ids[best])
        context += [token.id for token in event.event.emitted]


@pytest.mark.parametrize("lane", ["baseline", "speculative"])
def test_closing_at_any_event_leaves_the_next_run_identical_to_a_cold_one(default_pair: LoadedPair, lane: Lane) -> None:
    settings = {"prompt": "Say hello.", "mode": lane, "max_tokens": 8, "temperature": 0.8, "seed": 3}
    cold = ids(run(default_pair, **settings), lane)
    for n in (1, 2, 5, 9):
        broken = run(default_pair, **settings)
        list(itertools.islice(broken, n))
        broken.close()
        assert ids(run(default_pair, **settings), lane) == cold


def test_the_draft_is_worth_its_cost(default_pair: LoadedPair) -> None:
    """A loose bound that a draft with a broken cache or vocabulary would miss by far; README has the figures."""
    totals = [
        RaceMetrics.of(run(default_pair, prompt=prompt, drafter="draft-model", gamma=4)).speculative
        for prompt in prompts()[::2]
    ]
    tokens, passes = sum(lane.tokens for lane in totals), sum(lane.rounds for lane in totals)
    assert tokens / passes > 1.4
