"""Every round without a draft says why: each reason, where it arises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Auto, Fixed, Policy
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.events import Event, Round, Start
from specdemo.models.costs import Costs
from specdemo.models.datastore import Datastore
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings
from tests.heads import heads_for
from tests.tiny import STORE, Tiny

GREEDY = SamplerSettings(temperature=0)
PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 6, 5]
TARGET, DRAFT = Tiny(8, seed=1), Tiny(8, seed=2)
DEAR = Costs(c=9.0, v=tuple(1 + 9.0 * k for k in range(65)), o=0.0)
"""Drafting never pays."""


def run(
    drafter: str,
    prompt: list[int] = PROMPT,
    max_tokens: int = 24,
    draft: LanguageModel | None = None,
    policy: Policy | None = None,
    store: Datastore = STORE,
    target: LanguageModel | None = None,
    **job,
) -> list[Event]:
    target = target or TARGET.lean
    wanted, capacity = Request(prompt, GREEDY, max_tokens, decode=str), len(prompt) + max_tokens
    parts = {"store": store, "heads": heads_for(target)} | job
    made = DRAFTERS[drafter].make(DraftJob(target, draft or DRAFT.lean, GREEDY, 0, capacity, **parts))
    return list(speculative(target, made, wanted, policy or Fixed(4), capacity, drafter))


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def whys(events: list[Event]) -> list[str | None]:
    return [round_.no_draft for round_ in rounds(events)]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_round_has_a_draft_or_a_reason(drafter: str) -> None:
    for max_tokens in (1, 2, 24):
        for round_ in rounds(run(drafter, max_tokens=max_tokens)):
            assert bool(round_.drafted) == (round_.no_draft is None)
    plain = baseline(TARGET.lean, Request(PROMPT, GREEDY, 5, decode=str), 60)
    assert set(whys(list(plain))) == {None}


@pytest.mark.parametrize("runner", ["lean", "transformers"])
def test_a_draft_that_reads_less_than_the_text_says_so_and_how_much(runner: str) -> None:
    short = getattr(Tiny(8, seed=2, max_length=20), runner)
    events = run("draft-model", draft=short)
    assert events[0] == Start(prompt_tokens=13, drafter="draft-model", gamma=4, draft_context=20)
    full = [r for r in rounds(events) if r.no_draft == "draft_full"]
    assert full
    assert {r.start + len(PROMPT) >= 20 for r in full} == {True}
    assert all(r.start + len(PROMPT) < 20 for r in rounds(events) if not r.no_draft)
    assert run("draft-model", draft=short, max_tokens=7)[0].draft_context is None  # it can read all of that


@pytest.mark.parametrize("drafter", ["draft-model", "combined"])
def test_a_draft_that_reads_less_than_the_prompt_says_so_at_once(drafter: str) -> None:
    draft, store = Tiny(8, seed=2, max_length=8).lean, Datastore([torch.full((9,), 7, dtype=torch.int32).numpy()])
    events = run(drafter, prompt=[0, 2, 4, 6, 1, 3, 5, 7, 0, 1], draft=draft, max_tokens=2, store=store)
    assert events[0].draft_context == 8
    assert whys(events)[0] == "draft_full"


def test_lookups_that_found_nothing_say_so() -> None:
    assert whys(run("prompt-lookup", prompt=[0, 2, 4, 6, 1], max_tokens=2))[0] == "no_match"
    elsewhere = Datastore([torch.full((9,), 7, dtype=torch.int32).numpy()])
    assert whys(run("retrieval", store=elsewhere))[0] == "no_match"


def test_retrieval_that_has_too_many_answers_is_unsure() -> None:
    rows = [[*PROMPT[-4:], token] for token in range(8)]
    store = Datastore([torch.tensor(row, dtype=torch.int32).numpy() for row in rows])
    assert whys(run("retrieval", store=store))[0] == "unsure"


def test_a_draft_that_doubts_its_first_token_is_unsure() -> None:
    events = run("draft-model", confidence=0.999)
    assert "unsure" in whys(events)
    assert all(r.draft_steps == 1 for r in rounds(events) if r.no_draft == "unsure")


def test_plain_decoding_chosen_live_is_a_reason() -> None:
    found = whys(run("draft-model", policy=Auto(DEAR)))
    assert "plain_faster" in found
    assert set(found) <= {"plain_faster", "no_room", None}


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "combined-eagle"])
def test_a_tree_in_which_no_node_pays_is_a_reason(drafter: str) -> None:
    found = whys(run(drafter, shape=TreeShape(cost=DEAR.round), costs=DEAR))
    assert set(found) == {"no_node_pays", "no_room"}


@pytest.mark.parametrize("drafter", ["eagle", "medusa"])
def test_behind_a_prompt_of_one_token_there_is_nothing_to_draft_from(drafter: str) -> None:
    assert whys(run(drafter, prompt=[3]))[:2] == ["too_early", None]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_last_token_has_no_room_for_a_draft(drafter: str) -> None:
    assert whys(run(drafter, max_tokens=1)) == ["no_room"]


def test_a_full_context_of_the_target_is_no_reason_but_the_end() -> None:
    events = run("draft-model", target=replace(TARGET, max_length=20).lean, max_tokens=40)
    assert events[-1].reason == "context"
    assert set(whys(events)) <= {None, "no_room"}
