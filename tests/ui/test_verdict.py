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
