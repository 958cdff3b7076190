"""Weights with a NaN in them: a target's ends its lane in words, a drafter's switches it off and the text is exact."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pytest
import torch
from transformers import LlamaForCausalLM

from specdemo.decoding.baseline import baseline
from specdemo.decoding.batch import BatchRequest, decode_batch
from specdemo.decoding.gamma import Auto, Fixed, Policy
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.drafters.base import Drafter
from specdemo.errors import UserError
from specdemo.events import Draft, End, Event, LaneEvent, Prefill, Round, Start
from specdemo.models.costs import TEXTBOOK
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.runner import LanguageModel
from specdemo.race import compare_greedy, race
from specdemo.sampling import Uniforms, draw, probabilities
from specdemo.settings import SamplerSettings
from tests.exact import joint_distribution, p_value
from tests.heads import heads_for
from tests.models.test_lean import replayable
from tests.test_race import settings, tiny_pair
from tests.tiny import STORE, Tiny
from tests.trees import TreeOfSamples

GREEDY, WARM = SamplerSettings(temperature=0), SamplerSettings(temperature=0.8)
FILTERED = SamplerSettings(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01)
SAMPLERS = {"greedy": GREEDY, "warm": WARM, "filtered": FILTERED}
PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 6, 5]


@dataclass(frozen=True)
class Broken(Tiny):
    """A row of its output layer, or the embedding of a token, is no number."""

    part: str = "lm_head"
    row: int = 2
    value: float = math.nan

    @cached_property
    def oracle(self) -> LlamaForCausalLM:
        model = super().oracle
        with torch.no_grad():
            model.get_parameter(f"{self.part}.weight")[self.row] = self.value
        return model


EMBEDDING = "model.embed_tokens"
TARGET, DRAFT = Tiny(8, seed=1), Tiny(8, seed=2)
NO_TARGET, NO_DRAFT = Broken(8, seed=1), Broken(8, seed=2)
MODELS_OF_DRAFTERS = [name for name, kind in DRAFTERS.items() if kind.needs and kind.needs[0] != "store"]


def request(sampler: SamplerSettings, prompt: list[int] = PROMPT, **more) -> Request:
    return Request(prompt, sampler, **{"max_tokens": 24, "decode": str, **more})


def made(drafter: str, wanted: Request, target: LanguageModel, draft: LanguageModel, broken: bool = False) -> Drafter:
    heads = heads_for(target, broken)
    return DRAFTERS[drafter].make(DraftJob(target, draft, wanted.sampler, wanted.seed, 60, store=STORE, heads=heads))


def decode(
    drafter: str | None,
    wanted: Request,
    target: LanguageModel,
    draft: LanguageModel = DRAFT.lean,
    broken: bool = False,
    policy: Policy | None = None,
) -> list[Event]:
    if drafter is None:
        return list(baseline(target, wanted, 60))
    return list(
        speculative(target, made(drafter, wanted, target, draft, broken), wanted, policy or Fixed(4), 60, drafter)
    )


def ids(events: list[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, Round) for token in event.emitted]


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def numbers(value) -> Iterator[float]:
    """Every float of an event."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from (number for item in value.values() for number in numbers(item))
    elif isinstance(value, list):
        yield from (number for item in value for number in numbers(item))


def all_finite(events: list[Event]) -> bool:
    return all(math.isfinite(number) for event in events for number in numbers(event.model_dump()))


# --- The arithmetic ---


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_row_that_is_no_distribution_is_nan_from_end_to_end_and_every_draw_is_a_token(sampler: str) -> None:
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    rows[1, 7] = torch.nan
    rows[2, 7] = torch.inf
    rows[3] = -torch.inf
    rows[4, 1:] = -torch.inf
    rows[5, :20] = -torch.inf
    probs = probabilities(rows, SAMPLERS[sampler])
    assert probs[1:4].isnan().all()
    assert torch.allclose(probs[[0, 4, 5]].sum(-1), torch.ones(3))  # a mask is no fault
    drawn = draw(probs, Uniforms(0, "target", torch.device("cpu")).draw(6))
    assert (drawn < 40).all()


# --- A broken target ---


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_a_target_that_is_broken_ends_its_lane_in_a_sentence(
    drafter: str | None, runner: str, sampler: str, value: float, record: bool
) -> None:
    if drafter and "layers" in DRAFTERS[drafter].needs and runner == "transformers":
        pytest.skip("transformers' layers cannot be left early")
    target = getattr(Broken(8, seed=1, value=value), runner)
    events = decode(drafter, request(SAMPLERS[sampler], record=record), target)
    end = events[-1]
    assert isinstance(end, End)
    assert (end.reason, end.tokens, end.model) == ("error", 0, "tiny")
    assert "tiny computed no probabilities for token 0" in end.message
    assert not rounds(events)


@pytest.mark.parametrize("drafter", [name for name, kind in DRAFTERS.items() if kind.is_tree])
def test_typical_acceptance_notices_too(drafter: str) -> None:
    end = decode(drafter, request(WARM, typical=True), NO_TARGET.lean)[-1]
    assert (end.reason, end.tokens) == ("error", 0)


def breaks_late() -> tuple[list[int], Broken]:
    """A greedy text, and its target with a NaN in the embedding of a token that first comes somewhere inside."""
    text = ids(decode(None, request(GREEDY, [3, 1]), TARGET.lean))
    token = max(set(text) - {3, 1}, key=text.index)
    return text[: text.index(token) + 1], Broken(8, seed=1, part=EMBEDDING, row=token)


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_what_was_written_before_the_fault_stays(drafter: str | None) -> None:
    before, broken = breaks_late()
    assert len(before) > 3
    events = decode(drafter, request(GREEDY, [3, 1], record=True), broken.lean)
    end, text = events[-1], ids(events)
    assert end.reason == "error"
    assert end.tokens == len(text)
    assert f"token {len(text)} " in end.message
    # A pass that drafts the faulty token computes nothing but NaN: the lane may end a few tokens earlier, never wrong.
    assert text == (before if drafter is None else before[: len(text)])
    assert all_finite(events)


def test_drafts_that_passed_before_the_fault_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass's third row is broken: two accepted drafts have their say, and the round has no token of its own."""
    right = TARGET.lean.model.logits

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        out = right(hidden)
        if out.shape[-2] == 5:
            out[..., 2, :] = torch.nan
        return out

    plain = ids(decode(None, request(GREEDY), TARGET.lean))
    draft = Tiny(8, seed=1).lean  # equal, and not the patched one
    monkeypatch.setattr(TARGET.lean.model, "logits", logits)
    for sampler in SAMPLERS.values():
        events = decode("draft-model", request(sampler, record=True), TARGET.lean, draft)
        (only,) = rounds(events)
        assert [token.outcome for token in only.drafted] == ["accepted", "accepted", "discarded", "discarded"]
        assert only.final is None
        assert (events[-1].reason, events[-1].tokens) == ("error", 2)
        assert all_finite(events)
        assert sampler.temperature or ids(events) == plain[:2]


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded passes"])
def test_the_next_run_knows_nothing_of_a_fault(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded passes read their cache behind the text as well, where a NaN of the last run would lie."""
    model = Broken(8, seed=1, part=EMBEDDING, row=7).lean
    if recorded:
        monkeypatch.setattr(model, "_recorder", lambda: replayable)
    wanted = request(GREEDY, [3, 1], max_tokens=3)
    plain = decode(None, wanted, TARGET.lean)
    assert decode(None, request(GREEDY, [3, 7, 7, 7, 7, 7, 7, 7, 1]), model)[-1].reason == "error"
    assert ids(decode(None, wanted, model)) == ids(plain)


# --- A broken drafter ---


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("drafter", MODELS_OF_DRAFTERS)
def test_a_drafter_that_is_broken_is_switched_off_and_the_text_is_the_targets(
    drafter: str, runner: str, sampler: str, record: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if drafter == "early-exit":
        if runner == "transformers":
            pytest.skip("transformers' layers cannot be left early")
        shallow = LeanRunner.shallow
        monkeypatch.setattr(LeanRunner, "shallow", lambda self, new: shallow(self, new) * torch.nan)
    target, draft = getattr(TARGET, runner), getattr(NO_DRAFT, runner)
    wanted = request(SAMPLERS[sampler], record=record)
    events = decode(drafter, wanted, target, draft, broken=True)
    assert (events[-1].reason, events[-1].tokens) == ("max_tokens", 24)
    if not wanted.sampler.temperature:
        assert ids(events) == ids(decode(None, wanted, target))
    silent = [r for r in rounds(events) if r.no_draft == "draft_broken"]
    first = rounds(events).index(silent[0])
    assert len(silent) == len(rounds(events)) - first > 1
    assert all(not r.drafted for r in silent[1:])
    assert not any(token.outcome != "discarded" for token in silent[0].drafted)
    assert {r.final.outcome for r in silent} == {"plain"}
    assert all_finite(events)


def test_a_draft_that_breaks_on_its_way_drafts_until_then() -> None:
    """What it reads makes it break: the embedding of one token."""
    text = ids(decode(None, request(GREEDY), TARGET.lean))
    late = max(set(text) - set(PROMPT), key=text.index)
    draft = Broken(8, seed=1, part=EMBEDDING, row=late)
    events = decode("draft-model", request(GREEDY), TARGET.lean, draft.lean)
    assert ids(events) == text
    whys = [r.no_draft for r in rounds(events)]
    assert whys[0] is None
    assert whys[-1] == "draft_broken"


@pytest.mark.parametrize("gamma", [2, 3])
def test_texts_are_distributed_as_the_targets_where_a_draft_breaks_on_its_way(gamma: int) -> None:
    """In the middle of a draft (token 3 breaks it), at its beginning, or not at all, as the dice fall."""
    target, draft, prompt = Tiny(4, seed=1), Broken(4, seed=2, layers=1, part=EMBEDDING, row=3), [0, 1, 2, 0, 1]
    expected = joint_distribution(target.oracle, prompt, gamma + 2, WARM)
    texts, broke = [], 0
    for seed in range(400):
        wanted = request(WARM, prompt, max_tokens=gamma + 2, seed=seed)
        events = decode("draft-model", wanted, target.lean, draft.lean, policy=Fixed(gamma))
        texts.append(tuple(ids(events)))
        broke += any(token.q is None for r in rounds(events) for token in r.drafted)
    assert 20 < broke < 380
    assert p_value(texts, expected) > 1e-3


def test_nodes_drawn_from_what_is_no_distribution_are_not_accepted() -> None:
    drafter = TreeOfSamples(NO_DRAFT.lean, WARM, 0, (2, 2), "with replacement")
    events = list(speculative(TARGET.lean, drafter, request(WARM, record=True), Fixed(2), 60))
    first, *others = rounds(events)
    assert {token.outcome for token in first.drafted} == {"discarded"}
    assert {r.no_draft for r in (first, *others)} == {"draft_broken"}
    assert all_finite(events)


def test_a_broken_drafter_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = request(GREEDY)
    drafter, asked = made("eagle", wanted, TARGET.lean, DRAFT.lean, broken=True), []
    right = drafter.propose
    monkeypatch.setattr(drafter, "propose", lambda *arguments: (asked.append(1), right(*arguments))[1])
    policy = Auto(TEXTBOOK)  # which would like to try again
    events = list(speculative(TARGET.lean, drafter, wanted, policy, 60))
    assert {r.no_draft for r in rounds(events)} == {"draft_broken"}
    assert len(asked) == 1


# --- Batches, races, the check ---


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_batch_says_so_too(sampler: str) -> None:
    wanted = BatchRequest([PROMPT, [2, 3]], SAMPLERS[sampler], 12)
    for draft, gamma in ((None, 0), (DRAFT.lean, 3)):
        with pytest.raises(UserError, match="tiny computed no probabilities for token 0"):
            decode_batch(NO_TARGET.lean, wanted, draft, gamma)
    run = decode_batch(TARGET.lean, wanted, NO_DRAFT.lean, 3)
    assert run.draft_broke
    assert [len(text) for text in run.texts] == [12, 12]
    assert run.accepted == 0
    if sampler == "greedy":
        assert run.texts == decode_batch(TARGET.lean, wanted).texts
    assert not decode_batch(TARGET.lean, wanted, DRAFT.lean, 3).draft_broke


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_race_on_a_broken_target_ends_in_every_lane_and_the_pair_stays_usable(temperature: float) -> None:
    pair = tiny_pair()
    broken = replace(pair, target=NO_TARGET.lean)
    wanted = settings(temperature=temperature, rival="prompt-lookup")
    events = list(race(broken, wanted, threading.Event()))
    ends = [e.event for e in events if isinstance(e, LaneEvent) and isinstance(e.event, End)]
    assert [end.reason for end in ends] == ["error"] * 3
    assert events[-1].check.verdict == "unchecked"
    assert list(race(pair, settings(), threading.Event()))[-1].check.verdict == "identical"


def test_a_lane_that_fails_is_compared_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speculative lane's third pass fails; the baseline goes on to its end."""
    import specdemo.decoding.speculative as module

    right, calls = module.decide, []

    def decide(*arguments):
        calls.append(1)
        done = right(*arguments)
        return replace(done, path=[], p_token=math.nan) if len(calls) == 3 else done

    monkeypatch.setattr(module, "decide", decide)
    events = list(race(tiny_pair(), settings(), threading.Event()))
    ends = {e.lane: e.event for e in events if isinstance(e, LaneEvent) and isinstance(e.event, End)}
    assert (ends["baseline"].reason, ends["speculative"].reason) == ("max_tokens", "error")
    assert (events[-1].check.verdict, events[-1].check.compared) == ("identical", ends["speculative"].tokens)
    assert 0 < ends["speculative"].tokens < ends["baseline"].tokens


def test_texts_are_neither_identical_nor_a_bug_where_there_are_no_numbers() -> None:
    assert compare_greedy(TARGET.lean, PROMPT, [], []).verdict == "unchecked"
    check = compare_greedy(NO_TARGET.lean, PROMPT, [1, 2], [1, 3])
    assert (check.verdict, check.position) == ("unchecked", 1)
    assert compare_greedy(TARGET.lean, PROMPT, [], [1]).verdict == "different"


def test_events_of_a_broken_lane_are_whole() -> None:
    kinds = [type(event) for event in decode("draft-model", request(GREEDY, record=True), NO_TARGET.lean)]
    assert kinds == [Start, Prefill, Prefill, Draft, End]
