"""What goes over the wire: everything, once, in small pieces."""

import json
import threading

from specdemo.events import LaneEvent, Round
from specdemo.settings import Settings
from specdemo.ui.deltas import CODES, Encoder
from tests.ui.fake_host import FakeHost

KEPT = {CODES[outcome] for outcome in ("accepted", "resampled", "bonus", "plain")}


def events(host: FakeHost, **settings):
    return list(host.race(Settings(prompt="hello", **settings), threading.Event()))


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
