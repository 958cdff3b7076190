"""What goes over the wire: everything, once, in small pieces."""

import json
import threading

import pytest

from specdemo.events import LaneEvent, Round
from specdemo.settings import Settings
from specdemo.ui.deltas import CODES, Encoder
from tests.ui.fake_host import SCRIPT, FakeHost, pieces

KEPT = {CODES[outcome] for outcome in ("accepted", "resampled", "bonus", "plain")}


def events(host: FakeHost, **settings):
    return list(host.race(Settings(**{"prompt": "hello", **settings}), threading.Event()))


def deltas(race, every: int):
    encoder = Encoder()
    for i, event in enumerate(race, 1):
        encoder.add(event)
        if i % every == 0:
            yield encoder.delta()
    yield encoder.delta()


def text(found, lane: str) -> str:
    rounds = [r for delta in found for r in delta.get(lane, {}).get("rounds", [])]
    tokens = [t for r in rounds for t in [*r["drafted"], r["final"]] if t]
    return "".join(t[0] for t in tokens if t[1] in KEPT)


def test_deltas_together_hold_exactly_the_emitted_text(host):
    race = events(host, max_tokens=128)
    for lane in ("baseline", "speculative"):
        rounds = [e.event for e in race if isinstance(e, LaneEvent) and e.lane == lane and isinstance(e.event, Round)]
        emitted = "".join(token.text for r in rounds for token in r.emitted)
        assert emitted
        for every in (1, 3, 7, 10_000):
            assert text(deltas(race, every), lane) == emitted


def test_bytes_of_a_delta_do_not_grow_with_the_text(host):
    race = events(host, max_tokens=2000)
    sizes = [
        len(json.dumps(delta, ensure_ascii=False)) for delta in deltas(race, 4) if delta and "verdict" not in delta
    ]
    assert len(sizes) > 400
    early, late = max(sizes[5:100]), max(sizes[-100:])
    assert late < 1.3 * early  # digits of larger counts, no more


def test_every_outcome_has_its_own_letter():
    assert len(set(CODES.values())) == len(CODES) == 7


def test_a_ghost_is_shown_until_its_round_is_decided(host):
    seen_ghost = seen_round = False
    for delta in deltas(events(host, mode="speculative"), 1):
        news = delta.get("speculative", {})
        assert not ("ghost" in news and "rounds" in news)
        seen_ghost |= "ghost" in news
        seen_round |= "rounds" in news
    assert seen_ghost
    assert seen_round


def test_nothing_new_is_no_delta(host):
    encoder = Encoder()
    for event in events(host, max_tokens=8):
        encoder.add(event)
    assert encoder.delta()
    assert encoder.delta() == {}


def test_the_end_carries_verdict_and_check(host):
    last = [delta for delta in deltas(events(host), 5) if delta][-1]
    assert "×" in last["verdict"]["en"]
    assert last["check"]["kind"] == "identical"
    assert "20 tokens" in last["check"]["en"]


def test_a_rival_has_its_own_rounds_and_numbers_and_without_one_nothing_is_sent(host):
    with_rival = [delta for delta in deltas(events(host, rival="prompt-lookup"), 5) if delta]
    assert text(with_rival, "rival") == text(with_rival, "baseline") != ""
    assert with_rival[0]["start"]["rival"] == "prompt-lookup"
    numbers = with_rival[-1]["numbers"]
    assert numbers["rival"]["speedup"] > 1 < numbers["speculative"]["speedup"]
    assert numbers["lead"]["common"] == numbers["rival"]["common"] == len(pieces(SCRIPT))
    for settings in ({}, {"rival": "tree", "mode": "baseline"}):
        without = [delta for delta in deltas(events(host, **settings), 5) if delta]
        assert all(not {"rival", "lead"} & {*delta, *delta["numbers"]} for delta in without)


def test_without_a_baseline_two_drafters_are_compared_with_each_other(host):
    last = [delta for delta in deltas(events(host, rival="tree", mode="speculative"), 5) if delta][-1]
    assert last["numbers"]["rival"]["speedup"] is None
    assert last["numbers"]["lead"]["speedup"] == pytest.approx(1, abs=0.3)
    assert "draft-model" in last["verdict"]["en"]
    assert "tree" in last["verdict"]["ja"]


def test_a_tree_goes_over_the_wire_with_its_shape_before_and_after_the_verdict(host):
    found = [delta for delta in deltas(events(host, drafter="tree"), 1) if delta]
    ghosts = [delta["speculative"]["ghost"] for delta in found if "ghost" in delta.get("speculative", {})]
    rounds = [r for delta in found for r in delta.get("speculative", {}).get("rounds", []) if r["drafted"]]
    assert len(ghosts) == len(rounds) > 5
    for ghost, decided in zip(ghosts, rounds, strict=True):
        assert (ghost["n"], ghost["parents"]) == (decided["n"], decided["parents"])
        assert ghost["texts"] == [token[0] for token in decided["drafted"]]
        assert decided["depth"] <= 4 < len(decided["parents"])
    assert found[-1]["numbers"]["speculative"]["nodes"] > found[-1]["numbers"]["speculative"]["depth"] > 1
    assert text(found, "speculative") == text(found, "baseline")


def test_why_nothing_was_drafted_goes_over_the_wire(host):
    found = [delta for delta in deltas(events(host, drafter="short"), 5) if delta]
    starts = {
        lane: d[lane]["start"] for d in found for lane in ("baseline", "speculative") if "start" in d.get(lane, {})
    }
    assert starts["speculative"]["draft_context"] == 70
    assert starts["baseline"]["draft_context"] is None
    rounds = [r for delta in found for r in delta.get("speculative", {}).get("rounds", [])]
    assert {r.get("why") for r in rounds if r["drafted"]} == {None}
    assert [r["why"] for r in rounds[-20:]] == [*["draft_full"] * 19, "no_room"]


def test_an_error_ends_its_lane_in_both_languages(host):
    found = [delta for delta in deltas(events(host, prompt="NaN"), 5) if delta]
    ends = {lane: d[lane]["end"] for d in found for lane in ("baseline", "speculative") if "end" in d.get(lane, {})}
    assert ends["speculative"]["reason"] == "error"
    assert ends["speculative"]["message"].keys() == {"en", "ja"}
    assert "message" not in ends["baseline"]


def test_over_a_handful_of_tokens_no_lane_is_called_faster(host):
    last = [delta for delta in deltas(events(host, max_tokens=5), 5) if delta][-1]
    assert last["numbers"]["speculative"]["speedup"] is None
    assert "too short" in last["verdict"]["en"]
