"""Costs are measured until they are sure, or said to be guesses."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdemo.models import measure as measuring
from specdemo.models.costs import TEXTBOOK
from specdemo.models.loading import BUSY, LoadedPair, measured
from specdemo.models.measure import Parts, _measured, measure, steady, usual
from specdemo.models.pairs import Pair
from specdemo.settings import MAX_NODES
from tests.models.test_lean import replayable
from tests.tiny import Tiny

STEP = 0.03
TRUE = {"pass 2": 1.1, "pass 5": 1.3, "step draft": 0.1, "deciding": 0.02}
Slowdown = Iterator[float]


class Machine:
    """Work that takes what it takes, times what the machine's other work makes of it; a clock that shows the sum."""

    def __init__(self, slowdown: Slowdown) -> None:
        self.now, self.slowdown = 0.0, slowdown

    def work(self, seconds: float) -> float:
        taken = seconds * next(self.slowdown)
        self.now += taken
        return taken

    def measure(self, budget: float = 15.0) -> tuple[float, dict[str, float]] | None:
        pieces = {name: lambda ratio=ratio: self.work(ratio * STEP) for name, ratio in TRUE.items()}
        return steady(lambda: self.work(STEP), pieces, 4, 12, budget, lambda: self.now)


def quiet() -> Slowdown:
    rng = random.Random(0)
    return (1 + 0.03 * rng.random() for _ in itertools.count())


def stalled() -> Slowdown:
    """Another process takes the processor every now and then, for one piece of work each time."""
    rng = random.Random(1)
    return (30.0 if rng.random() < 0.02 else 1 + 0.03 * rng.random() for _ in itertools.count())


def throttled() -> Slowdown:
    """The whole machine becomes half as fast, and faster again."""
    return (2.0 if (i // 20) % 2 else 1.0 for i in itertools.count())


def chaotic() -> Slowdown:
    rng = random.Random(2)
    return (rng.choice([1.0, 3.0, 9.0, 27.0]) for _ in itertools.count())


@pytest.mark.parametrize("slowdown", [quiet, stalled, throttled])
def test_figures_are_right_whatever_happens_beside_them(slowdown) -> None:
    _, ratios = Machine(slowdown()).measure()
    assert ratios == {name: pytest.approx(ratio, rel=0.05) for name, ratio in TRUE.items()}


def test_a_machine_that_is_never_quiet_gives_no_figures() -> None:
    assert Machine(chaotic()).measure() is None


def test_a_busy_machine_is_given_up_when_the_time_is_over() -> None:
    machine = Machine(chaotic())
    assert machine.measure(budget=0.5) is None
    assert machine.now < 0.5 + 27 * STEP * (len(TRUE) + sum(TRUE.values()))  # one more round at most


def test_a_pass_never_costs_more_than_a_longer_one() -> None:
    """No machine takes longer for three tokens than for five: what was measured so could be made so."""
    ratios = {"pass 2": 1.35, "pass 3": 1.54, "pass 5": 1.23, "pass 9": 1.6, "deciding": 0.03, "deciding plainly": 0.01}
    costs = _measured(STEP, ratios).costs
    assert costs.v[:5] == pytest.approx((1, 1.23, 1.23, 1.23, 1.23))
    assert list(costs.v) == sorted(costs.v)
    assert len(costs.v) == MAX_NODES + 1
    assert costs.o == pytest.approx(0.02)
    assert costs.step == STEP


def test_plain_steps_are_the_unit_even_where_a_longer_pass_was_faster() -> None:
    assert min(_measured(STEP, {"pass 2": 0.9, "pass 9": 1.8, "deciding": 0, "deciding plainly": 0}).costs.v) == 1


def tiny_parts() -> Parts:
    return Parts(Tiny(300, seed=1).lean, Tiny(300, seed=2).lean, {})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path))
    return tmp_path


def test_every_part_of_a_pair_is_timed() -> None:
    pieces = measuring._pieces(tiny_parts())
    assert {"pass 2", "pass 17", "step draft", "reading draft", "step layers", "deciding", "deciding plainly"} <= set(
        pieces
    )
    assert all(timed() > 0 for timed in pieces.values())


def test_a_model_of_few_tokens_is_timed_within_them() -> None:
    small = Parts(Tiny(30, seed=1, max_length=8).lean, Tiny(30, seed=2, max_length=6).lean, {})
    assert "pass 65" not in measuring._pieces(small)


def test_measuring_leaves_the_caches_whose_passes_are_recorded_to_the_race() -> None:
    parts = tiny_parts()
    parts.target._recorder = lambda: replayable
    lanes = [parts.target.runner(40, passes=[1, 2, 3, 4]) for _ in range(3)]
    recorded = {id(lane.cache) for lane in lanes}
    del lanes
    pieces = measuring._pieces(parts)
    del pieces
    gc.collect()
    assert {id(idle.cache) for idle in parts.target._idle} == recorded


def test_what_was_measured_is_kept_for_these_weights_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def found(*_) -> tuple[float, dict[str, float]]:
        calls.append(1)
        return STEP, dict.fromkeys(measuring._pieces(tiny_parts()), 1.5)

    monkeypatch.setattr(measuring, "steady", found)
    first = measure(tiny_parts())
    assert measure(tiny_parts()) == first
    assert len(calls) == 1
    measure(Parts(Tiny(300, seed=1).lean, None, {}))
    assert len(calls) == 2


def test_a_busy_machine_is_said_to_be_and_nothing_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "steady", lambda *_: None)
    parts = tiny_parts()
    loaded = measured(LoadedPair(Pair("own", "own", "", None), None, parts.target, parts.draft))
    assert loaded.warnings == (BUSY,)
    assert loaded.costs == usual(parts).costs != TEXTBOOK
    assert loaded.costs_of("draft").c == usual(parts).steps["draft"]
    assert not list(cache.glob("machine-*.json"))


def test_the_default_pair_knows_what_each_of_its_parts_costs(default_pair: LoadedPair) -> None:
    assert default_pair.steps.keys() == {"draft", "eagle", "medusa", "layers"}
    assert default_pair.costs_of("").c == 0
    assert default_pair.costs_of("draft").c < default_pair.costs_of("layers").c
    assert default_pair.costs.v[0] == 1
    assert list(default_pair.costs.v) == sorted(default_pair.costs.v)
    assert default_pair.costs != TEXTBOOK
