"""Numbers from events, checked by hand on a run small enough to count."""

from __future__ import annotations

import pytest

from specdemo import theory
from specdemo.events import End, LaneEvent, Prefill, Round, Start, Token
from specdemo.metrics import LaneMetrics, RaceMetrics


def a_round(
    index: int, start: int, accepted: int, gamma: int, clock: float, draft: float = 0.0, verify: float = 1.0
) -> Round:
    """`accepted` of `gamma` drafts stay; tv is 0.2 where accepted and 0.8 where rejected."""
    drafted = [
        Token(
            id=i,
            text="x",
            outcome="accepted" if i < accepted else "rejected" if i == accepted else "discarded",
            position=start + i,
            tv=None if i > accepted else 0.2 if i < accepted else 0.8,
        )
        for i in range(gamma)
    ]
    outcome = "plain" if not gamma else "bonus" if accepted == gamma else "resampled"
    return Round(
        round=index,
        start=start,
        drafted=drafted,
        final=Token(id=9, text="y", outcome=outcome, position=start + accepted),
        draft_seconds=draft,
        verify_seconds=verify,
        overhead_seconds=0.0,
        clock=clock,
    )


def speculative_lane() -> LaneMetrics:
    lane = LaneMetrics()
    events = [
        Start(prompt_tokens=5, drafter="d", gamma=4),
        Prefill(done=4, total=4, clock=1.0),
        a_round(0, 0, accepted=2, gamma=4, clock=2.5, draft=0.4),  # 3 tokens
        a_round(1, 3, accepted=4, gamma=4, clock=4.0, draft=0.4),  # 5 tokens
        a_round(2, 8, accepted=0, gamma=4, clock=5.5, draft=0.4),  # 1 token
        End(reason="max_tokens", tokens=9, clock=5.5),
    ]
    for event in events:
        lane.add(event)
    return lane


def test_the_three_acceptance_rates_differ_as_their_definitions_do() -> None:
    lane = speculative_lane()
    assert lane.alpha == pytest.approx(6 / 8)  # tested: 3 + 4 + 1
    assert lane.draft_acceptance == pytest.approx(6 / 12)
    assert lane.expected_alpha == pytest.approx(1 - (6 * 0.2 + 2 * 0.8) / 8)
    assert lane.tokens_per_pass == pytest.approx(9 / 3)


def test_latencies_leave_the_first_burst_out_of_tpot() -> None:
    lane = speculative_lane()
    assert lane.ttft == pytest.approx(2.5)
    assert lane.tpot == pytest.approx((5.5 - 2.5) / (9 - 3))
    assert lane.decode_rate == pytest.approx(6 / 3)
    assert lane.end_to_end_rate == pytest.approx(9 / 5.5)
    assert lane.gaps == pytest.approx([1.5, 1.5])


def test_a_percentile_needs_a_hundred_gaps() -> None:
    few, many = LaneMetrics(), LaneMetrics()
    for i in range(5):
        few.add(a_round(i, i, 0, 0, clock=float(i**2)))
    for i in range(102):
        many.add(a_round(i, i, 0, 0, clock=i + (50.0 if i > 100 else 0.0)))
    assert few.worst_gap == ("max", 7.0)
    assert many.worst_gap == ("p99", 1.0)


def test_nothing_is_claimed_before_there_is_something() -> None:
    lane, race = LaneMetrics(), RaceMetrics()
    assert (lane.alpha, lane.ttft, lane.tpot, lane.tokens_per_pass, lane.worst_gap) == (None,) * 5
    assert (race.speedup, race.predicted_speedup, race.c, race.v) == (None,) * 4


def test_lanes_are_compared_over_the_same_number_of_tokens() -> None:
    race = RaceMetrics(speculative=speculative_lane())
    race.add(LaneEvent(lane="baseline", event=Prefill(done=4, total=4, clock=1.0)))
    for i in range(6):  # the baseline has only 6 tokens yet, one a second
        race.add(LaneEvent(lane="baseline", event=a_round(i, i, 0, 0, clock=2.0 + i)))
    # The speculative lane had its 6th token 3/5 of the way through its second burst.
    assert race.speedup == pytest.approx(6 / (1.5 + 1.5 * 3 / 5))
    assert race.c == pytest.approx(0.1)
    assert race.v == pytest.approx(1.0)


def test_the_prediction_is_leviathans_formula_with_measured_costs() -> None:
    race = RaceMetrics(speculative=speculative_lane())
    for i in range(9):
        race.add(LaneEvent(lane="baseline", event=a_round(i, i, 0, 0, clock=1.0 + i)))
    expected = theory.expected_tokens(0.75, 4)
    assert race.predicted_speedup == pytest.approx(expected / (4 * 0.1 + 1.0))


def test_where_gamma_varies_the_prediction_uses_the_measured_tokens_per_pass() -> None:
    race, clock = RaceMetrics(), 0.0
    for i in range(30):  # lookup: five rounds in six find nothing
        accepted = gamma = 4 if i % 6 == 0 else 0
        clock += 1.2 if gamma else 1.0
        verify = 1.2 if gamma else 1.0
        race.speculative.add(a_round(i, race.speculative.tokens, accepted, gamma, clock, verify=verify))
        race.baseline.add(a_round(i, i, 0, 0, clock=i + 1.0))
    assert race.speculative.tokens_per_pass == pytest.approx(50 / 30)
    assert race.predicted_speedup == pytest.approx((50 / 30) / ((25 * 1.0 + 5 * 1.2) / 30))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_expected_tokens_is_the_mean_of_the_truncated_geometric(alpha: float) -> None:
    gamma = 5
    by_cases = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma)) + (gamma + 1) * alpha**gamma
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(by_cases)


def test_a_step_that_only_showed_doubt_is_a_step_and_a_lookup_takes_none() -> None:
    doubtful, looked_up = LaneMetrics(), LaneMetrics()
    doubtful.add(a_round(0, 0, accepted=1, gamma=1, clock=1.0, draft=0.4).model_copy(update={"draft_steps": 2}))
    looked_up.add(a_round(0, 0, accepted=1, gamma=4, clock=1.0, draft=0.4).model_copy(update={"draft_steps": 0}))
    plain = LaneMetrics(rounds=1, tokens=1, verify_seconds=1.0)
    assert RaceMetrics(plain, doubtful).c == pytest.approx(0.2)
    assert RaceMetrics(plain, looked_up).c == pytest.approx(0.1)
    assert RaceMetrics(plain, looked_up).predicted_speedup is not None
    cost = RaceMetrics(plain, doubtful)
    assert cost.round_cost == pytest.approx(2 * cost.c + cost.v + cost.o)


def test_runs_are_pooled_by_adding_them_up() -> None:
    one = speculative_lane()
    both = LaneMetrics.pooled([one, one])
    assert (both.tokens, both.rounds, both.tested) == (2 * one.tokens, 2 * one.rounds, 2 * one.tested)
    assert both.alpha == one.alpha
    assert both.expected_alpha == pytest.approx(one.expected_alpha)
    assert both.gammas[4] == 2 * one.gammas[4]


def test_rounds_without_a_draft_are_counted_by_their_reason() -> None:
    lane = LaneMetrics()
    lane.add(Start(prompt_tokens=5, drafter="d", draft_context=64))
    for index, why in enumerate(["no_match", None, "draft_full", "draft_full"]):
        lane.add(a_round(index, index, 0, 0 if why else 4, clock=1.0 + index).model_copy(update={"no_draft": why}))
    assert lane.undrafted == {"no_match": 1, "draft_full": 2}
    both = LaneMetrics.pooled([lane, lane, LaneMetrics()])
    assert (both.undrafted["draft_full"], both.draft_context) == (4, 64)


def lane_of(rounds: int, tokens: int, seconds: float, tree: bool = False) -> LaneMetrics:
    """Rounds of `tokens` tokens that take `seconds` each."""
    lane, clock = LaneMetrics(), 0.0
    for i in range(rounds):
        clock += seconds
        event = a_round(i, lane.tokens, tokens - 1, tokens - 1, clock, verify=seconds)
        lane.add(event.model_copy(update={"parents": list(range(-1, tokens - 2))}) if tree else event)
    return lane


def test_each_lane_that_drafts_is_compared_with_the_baseline_and_the_rival_with_the_first() -> None:
    race = RaceMetrics(lane_of(30, 1, 1.0), lane_of(15, 2, 1.0), lane_of(10, 3, 2.0))
    assert race.speedup == pytest.approx(2.0)
    assert race.of_rival.speedup == pytest.approx(1.5)
    assert race.of_rival.round_cost == pytest.approx(2.0)
    assert race.lead == pytest.approx(0.75)
    alone = RaceMetrics(speculative=race.speculative, rival=race.rival)
    assert (alone.speedup, alone.of_rival.speedup) == (None, None)
    assert alone.lead == race.lead


def test_a_race_sorts_events_by_lane() -> None:
    race = RaceMetrics.of(
        LaneEvent(lane=lane, event=a_round(0, 0, 0, 0, 1.0)) for lane in ("rival", "baseline", "rival")
    )
    assert (race.baseline.rounds, race.speculative.rounds, race.rival.rounds) == (1, 0, 2)


def test_trees_have_a_mean_size_and_no_formula() -> None:
    race = RaceMetrics(lane_of(30, 1, 1.0), lane_of(8, 4, 1.0, tree=True))
    lane = race.speculative
    assert (lane.nodes_per_tree, lane.depth_per_tree) == (3, 3)
    assert (race.baseline.nodes_per_tree, race.baseline.depth_per_tree) == (None, None)
    lane.accepted -= 6  # alpha would say less by the formula, but tokens per pass are what they are
    assert race.predicted_speedup == pytest.approx(4.0)
    assert LaneMetrics.pooled([lane, lane]).nodes_per_tree == 3
