"""The verdict says what happened, wins and losses alike."""

import pytest

from specdemo.events import End, GreedyCheck, LaneEvent, Prefill, Round, Token
from specdemo.metrics import RaceMetrics
from specdemo.ui.verdict import check_note, verdict


def race(speculative_step: float, tokens: int = 40) -> RaceMetrics:
    """Both lanes emit `tokens`, the baseline one in 0.1 s, the speculative lane two in `speculative_step` seconds."""
    metrics = RaceMetrics()
    for lane, per_round, step in (("baseline", 1, 0.1), ("speculative", 2, speculative_step)):
        metrics.add(LaneEvent(lane=lane, event=Prefill(done=1, total=1, clock=0.1)))
        for n in range(tokens // per_round):
            start = n * per_round
            drafted = [
                Token(id=1, text="a", outcome="accepted", position=start + i, p=1, q=1, accept=1, u=0.5, tv=0)
                for i in range(per_round - 1)
            ]
            final = Token(id=2, text="b", outcome="bonus" if drafted else "plain", position=start + len(drafted))
            event = Round(
                round=n,
                start=start,
                drafted=drafted,
                final=final,
                draft_seconds=0.01 * len(drafted),
                verify_seconds=step - 0.01 * len(drafted),
                overhead_seconds=0,
                clock=0.1 + (n + 1) * step,
            )
            metrics.add(LaneEvent(lane=lane, event=event))
        metrics.add(LaneEvent(lane=lane, event=End(reason="max_tokens", tokens=tokens, clock=1)))
    return metrics


def test_a_win_names_speed_prediction_and_reason():
    text = verdict(race(0.1))["en"]
    assert "2.00× as fast over the same 40 tokens" in text
    assert "predicts 2.00×" in text
    assert "accepted 100% of the tested drafts" in text


def test_a_loss_is_called_a_loss_with_its_cost():
    text = verdict(race(0.25))["en"]
    assert "Speculation lost: 0.80×" in text
    assert "A round cost 2.50 target steps and yielded 2.00 tokens" in text


def test_a_tie_is_no_win():
    assert "No difference" in verdict(race(0.2))["en"]


def test_one_lane_is_not_compared():
    alone = RaceMetrics(baseline=race(0.1).baseline)
    assert "nothing to compare" in verdict(alone)["en"]
    assert verdict(RaceMetrics())["en"] == "No token was produced."


@pytest.mark.parametrize(
    ("check", "temperature", "words"),
    [
        (GreedyCheck(verdict="identical", compared=40), 0, "identical over 40 tokens"),
        (GreedyCheck(verdict="near_tie", compared=9, position=9, gap=2e-5), 0, "Near-tie at token 9 (gap 2e-05)"),
        (GreedyCheck(verdict="different", compared=9, position=9), 0, "BUG: the texts differ at token 9"),
        (GreedyCheck(verdict="unchecked"), 0.7, "same distribution"),
    ],
)
def test_the_check_is_never_silent(check, temperature, words):
    note = check_note(check, temperature, race(0.1))
    assert words in note["en"]
    assert note["ja"]


def duel(one: float, other: float, with_baseline: bool = True) -> RaceMetrics:
    """Two drafters that yield two tokens a round, in so many seconds; the baseline takes 0.1 s a token."""
    first = race(one)
    baseline = first.baseline if with_baseline else RaceMetrics().baseline
    return RaceMetrics(baseline, first.speculative, race(other).speculative)


NAMES = ("Draft model", "Prompt lookup")


def test_of_two_drafters_the_winner_is_named_with_the_reason():
    text = verdict(duel(0.1, 0.125), NAMES)["en"]
    assert "“Draft model” won: 1.25× as fast as “Prompt lookup” over the same 40 tokens" in text
    assert "“Draft model” 2.00×, “Prompt lookup” 1.60×" in text
    assert "a round of “Draft model” cost 1.00 target steps and yielded 2.00 tokens (accepted at 100% of" in text
    assert "a round of “Prompt lookup” cost 1.25 target steps" in text
    assert "“Prompt lookup” won" in verdict(duel(0.125, 0.1), NAMES)["en"]
    assert "「Prompt lookup」の勝ち" in verdict(duel(0.125, 0.1), NAMES)["ja"]


def test_two_losers_are_called_losers_and_equals_equal():
    assert "Both lost to plain decoding" in verdict(duel(0.25, 0.3), NAMES)["en"]
    assert "A draw" in verdict(duel(0.1, 0.101), NAMES)["en"]


def test_without_a_baseline_a_round_costs_milliseconds():
    text = verdict(duel(0.1, 0.125, with_baseline=False), NAMES)["en"]
    assert "a round of “Draft model” took 100 ms and yielded 2.00 tokens" in text
    assert "baseline" not in text


def test_the_same_drafter_twice_is_told_apart_by_its_place():
    assert "“Draft model” (third lane)" in verdict(duel(0.1, 0.125), ("Draft model",) * 2)["en"]


def test_the_lane_whose_text_parts_is_named_where_there_are_two():
    check = GreedyCheck(verdict="different", lane="rival", compared=9, position=9)
    assert check_note(check, 0, duel(0.1, 0.1), NAMES)["en"].startswith("“Prompt lookup”: BUG")
    assert check_note(check, 0, race(0.1), NAMES)["en"].startswith("BUG")
    assert check_note(GreedyCheck(verdict="unchecked"), 0, duel(0.1, 0.1, with_baseline=False))["en"]
