"""How gamma is chosen, and what a choice may cost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from torch.overrides import TorchFunctionMode

from specdemo import theory
from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Auto, Fixed
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.events import Round
from specdemo.models.costs import TEXTBOOK, Costs
from specdemo.settings import SamplerSettings
from tests.tiny import STORE, Tiny

COSTS = Costs(c=0.06, v=tuple(1 + 0.05 * k for k in range(17)), o=0.05)


def write(policy: Auto, alphas: list[float], tokens: int, seed: int = 0) -> tuple[float, Counter]:
    """Write a text whose drafts are accepted with alphas[i] at token i; target steps used, and gammas chosen."""
    rng, time_used, chosen, at = random.Random(seed), 0.0, Counter(), 0
    while at < tokens:
        gamma = policy.choose()
        chosen[gamma] += 1
        accepted = 0
        while accepted < gamma and rng.random() < alphas[min(at, len(alphas) - 1)]:
            accepted += 1
        policy.learn(gamma, gamma, accepted)
        time_used += COSTS.round(gamma, gamma)
        at += accepted + 1
    return time_used, chosen


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.9])
def test_auto_finds_the_gamma_that_the_formula_recommends(alpha: float) -> None:
    gains = {g: theory.expected_tokens(alpha, g) / COSTS.round(g, g) for g in range(17)}
    best = max(gains.values())
    _, chosen = write(Auto(COSTS), [alpha], 2000)
    mean_gain = sum(gains[g] * n for g, n in chosen.items()) / chosen.total()
    assert mean_gain > 0.97 * best


@pytest.mark.parametrize("seed", range(8))
def test_a_hopeless_text_costs_at_most_five_percent(seed: int) -> None:
    for tokens in (64, 128, 400):
        used, _ = write(Auto(COSTS), [0.02], tokens, seed)
        assert used < 1.05 * tokens


def test_a_text_that_becomes_predictable_is_noticed_from_plain_decoding() -> None:
    policy = Auto(COSTS)
    _, before = write(policy, [0.0], 200)
    assert before.most_common(1)[0][0] == 0
    _, after = write(policy, [0.95], 400)
    assert after[0] < 0.25 * after.total()
    assert max(after) >= 4


def test_what_was_gained_earlier_pays_for_nothing_later() -> None:
    policy = Auto(COSTS)
    write(policy, [0.95], 600)
    used, _ = write(policy, [0.0], 200)
    assert used < 1.12 * 200  # drafting once a round would cost 1.16


def test_a_drafter_too_unsure_to_draft_counts_against_drafting() -> None:
    policy = Auto(COSTS)
    for _ in range(40):
        policy.learn(steps=1 if policy.choose() else 0, drafted=0, accepted=0)
    assert policy.choose() == 0


def test_a_lookup_that_found_nothing_says_nothing() -> None:
    policy = Auto(COSTS)
    before = policy.alpha
    policy.choose()
    policy.learn(steps=0, drafted=0, accepted=0)
    assert policy.alpha == before


def test_what_a_draft_missed_meanwhile_is_part_of_what_asking_it_costs() -> None:
    """A draft model that was not asked for 50 tokens reads them all when it is asked again."""
    patient, hasty = Auto(replace(COSTS, read=0.02)), Auto(COSTS)
    probes = []
    for policy in (patient, hasty):
        _, chosen = write(policy, [0.0], 400)
        probes.append(chosen.total() - chosen[0])
    assert probes[0] < probes[1]


@pytest.mark.parametrize("tokens", [80, 160, 400])
@pytest.mark.parametrize("alpha", [0.02, 0.2, 0.3])
@pytest.mark.parametrize(("c", "read"), [(0.06, 0.02), (0.3, 0.05), (0.3, 0.1), (0.5, 0.3)])
def test_what_a_draft_reads_before_a_trial_is_within_what_may_be_lost(
    c: float, read: float, alpha: float, tokens: int
) -> None:
    """A slow draft that is right now and then, and not worth its time."""
    costs = replace(COSTS, c=c, read=read)
    for seed in range(40):
        rng, policy, used, behind, at = random.Random(seed), Auto(costs), 0.0, 0, 0
        while at < tokens:
            gamma, accepted = min(policy.choose(), tokens - at - 1), 0
            while accepted < gamma and rng.random() < alpha:
                accepted += 1
            used += costs.round(gamma, gamma, behind if gamma else 0)
            behind = 0 if gamma else behind + 1
            policy.learn(gamma, gamma, accepted)
            at += accepted + 1
        assert used <= 1.035 * at


@pytest.mark.parametrize("tokens", [4, 8, 16, 30, 80])
def test_a_short_answer_loses_one_wrong_draft_and_hardly_more(tokens: int) -> None:
    used, _ = write(Auto(COSTS), [0.0], tokens)
    assert used <= 1.03 * tokens + COSTS.round(1, 1) - 1


def test_no_belief_outlives_its_run() -> None:
    spoiled = Auto(COSTS)
    write(spoiled, [0.0], 100)
    assert Auto(COSTS).choose() == Auto(COSTS).choose() > 0 == spoiled.choose()


def test_fixed_is_fixed() -> None:
    policy = Fixed(3)
    policy.learn(3, 3, 0)
    assert policy.choose() == policy.gamma == 3


# --- Costs ---


def test_a_round_costs_what_its_parts_cost() -> None:
    assert COSTS.round(0, 0) == 1
    assert COSTS.round(4, 4) == pytest.approx(4 * 0.06 + 1.2 + 0.05)
    assert COSTS.round(1, 0) == pytest.approx(1.06)
    assert replace(COSTS, read=0.01).round(1, 0, behind=20) == pytest.approx(1.26)
    assert TEXTBOOK.round(0, 0) == 1


# --- What a round may wait for ---


class Waits(TorchFunctionMode):
    """Notes every call that brings a tensor's values to the host, with its size."""

    CALLS = frozenset({"tolist", "item", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__", "nonzero"})

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.CALLS:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["draft-model", "prompt-lookup", "retrieval", "combined", None])
def test_a_round_waits_for_the_device_once_and_never_for_a_whole_vocabulary(
    drafter: str | None, temperature: float
) -> None:
    vocab = 300
    target, draft = Tiny(vocab, seed=1).lean, Tiny(vocab, seed=2).lean
    sampler = SamplerSettings(temperature=temperature, top_k=20 if temperature else 0)
    request = Request([1, 2, 3, 1, 2, 3, 1, 2], sampler, 24, decode=str)
    events = baseline(target, request, 40)
    if drafter:
        made = DRAFTERS[drafter].make(DraftJob(target, draft, sampler, 0, 40, store=STORE))
        events = speculative(target, made, request, Fixed(3), 40)
    rounds = 0
    while True:
        with Waits() as waits:
            event = next(events, None)
        if event is None:
            break
        if isinstance(event, Round):
            rounds += 1
            assert len(waits.sizes) == 1
        assert all(size < vocab / 4 for size in waits.sizes)
    assert rounds > 3


def test_doubt_waits_once_a_step_more() -> None:
    """Whether to draw the next draft at all is known on the device alone; the docstring says what it costs."""
    target, draft = Tiny(300, seed=1).lean, Tiny(300, seed=2).lean
    sampler = SamplerSettings(temperature=0)
    made = DRAFTERS["draft-model"].make(DraftJob(target, draft, sampler, 0, 40, confidence=1e-9))
    events = speculative(target, made, Request([1, 2, 3], sampler, 12, decode=str), Fixed(3), 40)
    while True:
        with Waits() as waits:
            event = next(events)
        if isinstance(event, Round):
            assert len(waits.sizes) == 1 + event.draft_steps
            break


# --- A draft that ends early ---


def test_a_draft_ends_before_the_token_that_it_doubts() -> None:
    target, draft = Tiny(8, seed=1).lean, Tiny(8, seed=2).lean
    prompt = [3, 1, 4, 1, 5]
    sampler = SamplerSettings(temperature=0)
    context, survival, expected = list(prompt), 1.0, 0
    while True:
        row = draft.runner(32).forward(context)[-1]
        survival *= float(row.softmax(-1).amax())
        if survival < 0.35:
            break
        expected += 1
        context.append(int(row.argmax()))
    made = DRAFTERS["draft-model"].make(DraftJob(target, draft, sampler, 0, 32, confidence=0.35))
    made.prefill(prompt, None, lambda: False)
    proposal = made.propose(prompt, 12, lambda: False)
    assert 0 < expected < 12
    assert proposal.ids.tolist() == context[len(prompt) :]
    assert proposal.steps == expected + 1


def test_confidence_zero_never_ends_a_draft() -> None:
    target, draft = Tiny(8, seed=1).lean, Tiny(8, seed=2).lean
    made = DRAFTERS["draft-model"].make(DraftJob(target, draft, SamplerSettings(temperature=0), 0, 32))
    made.prefill([3, 1, 4], None, lambda: False)
    proposal = made.propose([3, 1, 4], 12, lambda: False)
    assert len(proposal) == proposal.steps == 12


def test_drafts_of_a_run_vary_with_confidence_and_the_text_does_not() -> None:
    target, draft = Tiny(8, seed=1).lean, Tiny(8, seed=2).lean
    sampler = SamplerSettings(temperature=0)
    request = Request([3, 1, 4, 1, 5, 2, 6, 5], sampler, 50, decode=str)

    def run(confidence: float) -> tuple[list[int], set[int]]:
        made = DRAFTERS["draft-model"].make(DraftJob(target, draft, sampler, 0, 80, confidence))
        rounds = [e for e in speculative(target, made, request, Fixed(5), 80) if isinstance(e, Round)]
        return [t.id for r in rounds for t in r.emitted], {len(r.drafted) for r in rounds}

    plain, full = run(0.0)
    early, lengths = run(0.3)
    assert early == plain
    assert max(lengths) < max(full)
    assert len(early) == 50
