"""The verdict says what happened, wins and losses alike."""

from typing import get_args

import pytest

from specdemo.decoding.request import no_distribution
from specdemo.events import End, GreedyCheck, LaneEvent, NoDraft, Prefill, Round, Start, Token
from specdemo.metrics import RaceMetrics
from specdemo.ui.copy import TEXTS
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
    assert "accepted 100\u00a0% of the tested drafts" in text


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
    assert "a round of “Draft model” cost 1.00 target steps and yielded 2.00 tokens (accepted at 100\u00a0% of" in text
    assert "a round of “Prompt lookup” cost 1.25 target steps" in text
    assert "“Prompt lookup” won" in verdict(duel(0.125, 0.1), NAMES)["en"]
    assert "「プロンプト検索」の勝ち" in verdict(duel(0.125, 0.1), NAMES)["ja"]


def test_two_losers_are_called_losers_and_equals_equal():
    assert "Both lost to plain decoding" in verdict(duel(0.25, 0.3), NAMES)["en"]
    assert "A draw" in verdict(duel(0.1, 0.101), NAMES)["en"]


def test_without_a_baseline_a_round_costs_milliseconds():
    text = verdict(duel(0.1, 0.125, with_baseline=False), NAMES)["en"]
    assert "a round of “Draft model” took 100\u00a0ms and yielded 2.00 tokens" in text
    assert "baseline" not in text


def test_the_same_drafter_twice_is_told_apart_by_its_place():
    assert "“Draft model” (third lane)" in verdict(duel(0.1, 0.125), ("Draft model",) * 2)["en"]


def test_the_lane_whose_text_parts_is_named_where_there_are_two():
    check = GreedyCheck(verdict="different", lane="rival", compared=9, position=9)
    assert check_note(check, 0, duel(0.1, 0.1), NAMES)["en"].startswith("“Prompt lookup”: BUG")
    assert check_note(check, 0, race(0.1), NAMES)["en"].startswith("BUG")
    assert check_note(GreedyCheck(verdict="unchecked"), 0, duel(0.1, 0.1, with_baseline=False))["en"]


# --- Too short, not drafted, failed, stopped ---


@pytest.mark.parametrize("tokens", [2, 4, 10])
def test_a_handful_of_tokens_is_no_win(tokens):
    told = verdict(race(0.1, tokens))
    assert told["en"] == f"The run was too short to compare the lanes: both have {tokens} tokens."
    assert f"{tokens} トークンだけ" in told["ja"]
    first, other = race(0.1, tokens), race(0.2, tokens)
    assert "too short" in verdict(RaceMetrics(first.baseline, first.speculative, other.speculative), NAMES)["en"]


def test_one_token_is_one_token():
    lane = race(0.1, 2)
    lane.baseline.tokens = 1
    assert verdict(lane)["en"].endswith("both have 1 token.")
    assert check_note(GreedyCheck(verdict="identical", compared=1), 0, lane)["en"] == "Texts identical over 1 token."


def silent(reasons: dict[NoDraft, int], drafted: int = 29, context: int | None = None) -> RaceMetrics:
    """A race with that many rounds without a draft, by the reason."""
    whole = race(0.1, 2 * drafted)
    whole.speculative.add(Start(prompt_tokens=5, drafter="d", draft_context=context))
    for why, count in reasons.items():
        for _ in range(count):
            n = whole.speculative.rounds
            final = Token(id=2, text="b", outcome="plain", position=n)
            seconds = {"draft_seconds": 0, "verify_seconds": 0.1, "overhead_seconds": 0}
            whole.speculative.add(
                Round(round=n, start=n, drafted=[], final=final, no_draft=why, clock=3 + 0.1 * n, **seconds)
            )
    return whole


def test_the_verdict_says_in_how_many_rounds_nothing_was_drafted_and_why():
    text = verdict(silent({"draft_full": 61}, context=64))
    assert "Nothing was drafted in 61 of 90 rounds: the draft reads at most 64 tokens." in text["en"]
    assert "90 ラウンド中 61 ラウンドは下書きなし: 下書きモデルが読めるのは 64 トークンまで。" in text["ja"]
    text = verdict(silent({"no_room": 1, "unsure": 9}))["en"]
    assert "in 10 of 39 rounds: the draft was too unsure of its first token (9); only one token was left" in text
    both = silent({"no_match": 9})
    text = verdict(RaceMetrics(both.baseline, race(0.1).speculative, both.speculative), NAMES)["en"]
    assert "“Prompt lookup”: Nothing was drafted in 9 of 38 rounds: nothing that could follow was found." in text
    assert text.count("Nothing was drafted") == 1


def test_a_last_token_without_a_draft_is_not_worth_a_sentence_unless_it_is_the_only_one():
    assert "drafted" not in verdict(silent({"no_room": 1, "too_early": 1}))["en"].replace("tested drafts", "")
    assert "in 1 of 1 rounds: only one token was left to write" in verdict(silent({"no_room": 1}, drafted=0))["en"]


@pytest.mark.parametrize("language", TEXTS)
def test_every_reason_has_its_words(language):
    assert {f"why_{why}" for why in get_args(NoDraft)} == {key for key in TEXTS[language] if key.startswith("why_")}


def failed(metrics: RaceMetrics, *lanes: str) -> RaceMetrics:
    for lane in lanes:
        own = getattr(metrics, lane)
        message = no_distribution("M", own.tokens)
        own.end = End(reason="error", tokens=own.tokens, clock=1, message=message, model="M")
    return metrics


def test_an_error_is_told_once_or_by_lane():
    everywhere = verdict(failed(RaceMetrics(), "baseline", "speculative"))
    assert everywhere["en"].startswith("No token was produced. M computed no probabilities for token 0 (")
    assert everywhere["en"].count("M computed") == 1
    assert "M はトークン 0 の確率を計算できませんでした" in everywhere["ja"]
    one = verdict(failed(race(0.1), "speculative"))
    assert "2.00× as fast" in one["en"]
    assert "Speculative: M computed no probabilities for token 40" in one["en"]
    assert "投機的: M はトークン 40" in one["ja"]


def test_the_check_says_nothing_false_of_lanes_that_ended_early():
    broken = failed(race(0.1), "speculative")
    note = check_note(GreedyCheck(verdict="identical", compared=40), 0, broken)
    assert note["en"] == "Texts identical over 40 tokens, as far as both came."
    assert "error" in check_note(GreedyCheck(verdict="unchecked"), 0, broken)["en"]
    note = check_note(GreedyCheck(verdict="unchecked", compared=9, position=9), 0, broken)
    assert "part at token 9, where the target computes no probabilities" in note["en"]
    stopped = race(0.1)
    stopped.baseline.end = End(reason="stopped", tokens=40, clock=1)
    assert check_note(GreedyCheck(verdict="unchecked"), 0, stopped)["en"].startswith("Stopped before the end")


def test_a_lane_that_wrote_nothing_is_not_called_absent():
    alone = race(0.1)
    stopped = End(reason="stopped", tokens=0, clock=1)
    lanes = RaceMetrics(alone.baseline, RaceMetrics().speculative)
    lanes.speculative.end = stopped
    assert "Nothing came from another lane" in verdict(lanes)["en"]
    assert "ran alone" not in verdict(lanes)["en"]
