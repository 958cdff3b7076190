"""What a decoder promises beside its distribution: caches, ends, limits, interruption, repeatability."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Fixed
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.events import Draft, End, Event, Prefill, Round, Start
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings
from tests.heads import heads_for
from tests.policies import Cycle
from tests.tiny import STORE, Tiny

GREEDY, HOT = SamplerSettings(temperature=0), SamplerSettings(temperature=1.0)
PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 6, 5]
TARGET, DRAFT = Tiny(8, seed=1, max_length=512), Tiny(8, seed=2, max_length=512)


def run(
    request: Request,
    drafter: str = "draft-model",
    gamma: int | tuple[int, ...] = 4,
    target: LanguageModel | None = None,
    draft: LanguageModel | None = None,
) -> Iterator[Event]:
    target, draft = target or TARGET.lean, draft or DRAFT.lean
    capacity = len(request.prompt) + request.max_tokens
    parts = {"store": STORE, "heads": heads_for(target)}
    made = DRAFTERS[drafter].make(DraftJob(target, draft, request.sampler, request.seed, capacity, **parts))
    policy = Fixed(gamma) if isinstance(gamma, int) else Cycle(*gamma)
    return speculative(target, made, request, policy, capacity, drafter)


def request(sampler: SamplerSettings = HOT, max_tokens: int = 40, **more) -> Request:
    return Request(PROMPT, sampler, max_tokens, decode=lambda ids: "".join(map(str, ids)), **more)


def ids(events: list[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, Round) for token in event.emitted]


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def without_times(events: list[Event]) -> list[dict]:
    times = {"clock", "draft_seconds", "verify_seconds", "overhead_seconds"}
    return [event.model_dump(exclude=times) for event in events]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_events_come_in_order_and_count_right(drafter: str) -> None:
    events = list(run(request(record=True), drafter))
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], End)
    assert [e.done for e in events if isinstance(e, Prefill)][-1] == len(PROMPT) - 1
    assert events[-1].tokens == len(ids(events)) == 40
    position = 0
    for round_ in rounds(events):
        assert round_.start == position
        assert [t.position for t in round_.emitted] == list(range(position, position + len(round_.emitted)))
        position += len(round_.emitted)
    clocks = [event.clock for event in events if not isinstance(event, Start)]
    assert clocks == sorted(clocks)
    drafts = {event.round: event.texts for event in events if isinstance(event, Draft)}
    assert {r.round: [t.text for t in r.drafted] for r in rounds(events) if r.drafted} == drafts


@pytest.mark.parametrize("gamma", [4, 1, (5, 1, 0, 3, 8)], ids=["4", "1", "changing"])
@pytest.mark.parametrize("runner", ["lean", "transformers"])
def test_a_draft_equal_to_the_target_is_always_accepted(gamma: int | tuple[int, ...], runner: str) -> None:
    """200 greedy tokens: any token missing from the draft's cache, or a wrong position, would show here."""
    model = getattr(TARGET, runner)
    events = list(run(request(GREEDY, 200), "draft-model", gamma, model, model))
    assert len(ids(events)) == 200
    assert {token.outcome for r in rounds(events) for token in r.drafted} == {"accepted"}


@pytest.mark.parametrize("runner", ["lean", "transformers"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_speculative_text_is_the_plain_greedy_text(drafter: str, runner: str) -> None:
    if "layers" in DRAFTERS[drafter].needs and runner == "transformers":
        pytest.skip("transformers' layers cannot be left early")
    target, draft = getattr(TARGET, runner), getattr(DRAFT, runner)
    plain = ids(list(baseline(target, request(GREEDY, 150), 512)))
    assert ids(list(run(request(GREEDY, 150), drafter, 4, target, draft))) == plain
    oracle = TARGET.oracle.generate(torch.tensor([PROMPT]), max_new_tokens=150, do_sample=False, eos_token_id=None)
    assert plain == oracle[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("runner", ["lean", "transformers"])
def test_logits_after_rollback_equal_those_of_a_fresh_prefill(runner: str) -> None:
    model = getattr(TARGET, runner)
    used, fresh = model.runner(64), model.runner(64)
    used.prefill(PROMPT)
    used.forward([7, 7, 7, 0, 1])
    used.rollback(len(PROMPT) - 3)
    fresh.prefill(PROMPT[:-3])
    torch.testing.assert_close(used.forward([2, 4]), fresh.forward([2, 4]), atol=1e-5, rtol=1e-5)
    assert used.length == len(PROMPT) - 1


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    first, again = (list(run(request(seed=5, record=True))) for _ in range(2))
    assert without_times(first) == without_times(again)
    assert ids(list(run(request(seed=6)))) != ids(first)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_closing_at_any_event_leaves_the_next_run_as_a_cold_one(drafter: str) -> None:
    cold = without_times(list(run(request(max_tokens=12), drafter)))
    for n in range(1, len(cold)):
        broken = run(request(max_tokens=12), drafter)
        list(itertools.islice(broken, n))
        broken.close()
        assert without_times(list(run(request(max_tokens=12), drafter))) == cold


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("decoder", ["baseline", "speculative"])
def test_stop_is_asked_before_every_model_call(decoder: str, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after any number of questions: not one more model call is made, and the text so far is kept."""
    calls = []
    right = TARGET.lean.model.forward
    for model in (TARGET.lean.model, DRAFT.lean.model):
        monkeypatch.setattr(model, "forward", lambda *a, f=model.forward: (calls.append(1), f(*a))[1])
    assert right is not TARGET.lean.model.forward
    for patience in range(1, 30):
        asked = itertools.count(1)
        stopped_at: list[int] = []

        def stop(asked=asked, patience=patience, stopped_at=stopped_at) -> bool:
            if next(asked) >= patience and not stopped_at:
                stopped_at.append(len(calls))
            return bool(stopped_at)

        wanted = request(stop=stop)
        events = list(run(wanted, drafter) if decoder == "speculative" else baseline(TARGET.lean, wanted, 64))
        assert isinstance(events[-1], End)
        assert events[-1].reason == "stopped"
        # A draft that was cut short may still be verified by no one: at most zero further calls.
        assert len(calls) == stopped_at[0]
        assert events[-1].tokens == len(ids(events))


def eos_cases() -> list[frozenset[int]]:
    return [frozenset({token}) for token in range(8)] + [frozenset({0, 3}), frozenset({1, 2, 5, 7})]


@pytest.mark.parametrize("eos", eos_cases(), ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_end_of_text_ends_it_wherever_it_falls(drafter: str, eos: frozenset[int]) -> None:
    for seed in range(6):
        events = list(run(request(seed=seed, eos_ids=eos), drafter))
        text = ids(events)
        assert not eos & set(text[:-1])
        if events[-1].reason == "eos":
            assert text[-1] in eos
        else:
            assert len(text) == 40
        last = rounds(events)[-1]
        if last.final is None:  # the end was among the accepted drafts; what was accepted behind it is cut
            end = [token for token in last.drafted if token.outcome == "accepted"][-1]
            assert end.id in eos
            behind = {token.outcome for token in last.drafted if token.position > end.position}
            assert behind <= {"cut", "rejected", "discarded"}


def test_accepted_drafts_behind_an_end_of_text_are_cut() -> None:
    """A draft equal to the target accepts everything; some seed puts the end into the middle of a draft."""
    seen = set()
    for seed in range(40):
        events = list(run(request(seed=seed, eos_ids=frozenset({0})), "draft-model", 6, TARGET.lean, TARGET.lean))
        seen |= {token.outcome for r in rounds(events) for token in r.drafted}
    assert "cut" in seen


@pytest.mark.parametrize("max_tokens", range(1, 9))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_never_more_than_max_tokens(drafter: str, max_tokens: int) -> None:
    events = list(run(request(max_tokens=max_tokens), drafter, 5))
    assert len(ids(events)) == events[-1].tokens == max_tokens
    assert events[-1].reason == "max_tokens"


def test_the_context_limit_of_the_target_ends_the_text() -> None:
    short = Tiny(8, seed=1, max_length=20).lean
    events = list(run(request(), target=short))
    assert events[-1].reason == "context"
    assert len(PROMPT) + len(ids(events)) == 20


def test_a_draft_with_a_shorter_context_falls_silent_and_the_target_goes_on() -> None:
    short = Tiny(8, seed=2, max_length=20).lean
    events = list(run(request(GREEDY), draft=short))
    assert ids(events) == ids(list(baseline(TARGET.lean, request(GREEDY), 64)))
    late = [r for r in rounds(events) if r.start + len(PROMPT) >= 20]
    assert late
    assert all(not r.drafted and r.final.outcome == "plain" for r in late)


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    one = Request([3], GREEDY, 10, decode=str)
    assert ids(list(run(one))) == ids(list(baseline(TARGET.lean, one, 16)))


def test_a_long_prompt_is_read_in_chunks_that_change_nothing() -> None:
    long = Request((PROMPT * 40)[:470], GREEDY, 20, decode=str)
    events = list(run(long))
    assert [e.done for e in events if isinstance(e, Prefill)] == [256, 469, 469]
    oracle = TARGET.oracle.generate(torch.tensor([long.prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert ids(events) == oracle[0, 470:].tolist()


def test_recording_lists_the_top_of_every_distribution_and_can_be_switched_off() -> None:
    recorded = rounds(list(run(request(record=True))))
    rejected = [t for r in recorded for t in r.drafted if t.outcome == "rejected"]
    assert rejected
    for token in rejected:
        assert sum(c.prob for c in token.top.residual) == pytest.approx(1, abs=1e-4)
        assert len(token.top.p) == len(token.top.plain) == 8
    assert all(t.top is None for r in rounds(list(run(request()))) for t in [*r.drafted, r.final] if t)


def test_decisions_follow_the_recorded_numbers() -> None:
    for round_ in rounds(list(run(request()))):
        for token in round_.drafted:
            if token.outcome == "discarded":
                assert token.p is token.u is None
            else:
                assert token.accept == pytest.approx(min(1, token.p / token.q), rel=1e-5)
                assert (token.u < token.accept) == (token.outcome == "accepted")


PARTS = [b"a", b"b", b"\xc3", b"c", b"\xc3", b"\n", b"\xc3", "é".encode()]  # three of them begin a character


def in_bytes(ids: list[int]) -> str:
    return b"".join(PARTS[i] for i in ids).decode(errors="replace")


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_a_text_is_whole_wherever_it_is_cut(drafter: str | None) -> None:
    """Within a character, behind an accepted draft or a token of the target's own."""
    cut = 0
    for max_tokens in range(1, 13):
        wanted = Request(PROMPT, HOT, max_tokens, decode=in_bytes, seed=max_tokens, record=True)
        events = list(run(wanted, drafter) if drafter else baseline(TARGET.lean, wanted, 40))
        text = "".join(token.text for round_ in rounds(events) for token in round_.emitted)
        assert text == in_bytes([*PROMPT, *ids(events)])[len(in_bytes(PROMPT)) :]
        cut += text.endswith("\ufffd")
    assert cut > 0
