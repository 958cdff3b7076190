"""A stall never becomes a record: runs that something outside disturbed are run again or marked, never averaged."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from specdemo.bench.contenders import NEVER, Ours, Written, speculative
from specdemo.bench.report import MARK, Report
from specdemo.bench.runs import Runs
from specdemo.bench.steady import Measured, Steadiness, machine_times, pause
from specdemo.bench.suite import Suite
from specdemo.bench.tables import speedup_lines
from specdemo.decoding import baseline as decoding
from specdemo.metrics import LaneMetrics
from specdemo.settings import Settings
from tests.bench.test_report import plain
from tests.test_race import tiny_pair

SETTINGS = {"max_tokens": 12, "chat": False}


def measured(metrics: LaneMetrics, share: float | None = 2.0, repeat: int = 0, prompt: int = 0) -> Measured:
    processor = None if share is None else share * metrics.clock
    return Measured(
        contender="x", prompt=prompt, repeat=repeat, ids=[], metrics=metrics, wall=metrics.clock, processor=processor
    )


def verdicts(*runs: Measured) -> list[str]:
    steady = Steadiness()
    for run in runs:
        steady.learn(run)
    return [steady.disturbance(run) for run in runs]


def stalled(seconds: float, usual: float = 0.1, tokens: int = 21) -> LaneMetrics:
    """One token a step, and one long wait in the middle."""
    run = plain(usual, tokens)
    half = tokens // 2
    bursts = run.bursts[:half] + [(clock + seconds, n) for clock, n in run.bursts[half:]]
    return replace(run, bursts=bursts, clock=bursts[-1][0])


def test_runs_alike_are_undisturbed() -> None:
    assert verdicts(*(measured(plain(0.1 * (1 + i / 30), 21), share=1.4 + i / 30) for i in range(4))) == [""] * 4


def test_less_processor_time_than_usual_gives_another_program_away() -> None:
    """Two threads have 2 seconds a second, a lookup 1: what counts is what this contender has otherwise."""
    found = verdicts(*(measured(plain(0.1), share=share, prompt=i) for i, share in enumerate([2.0, 1.9, 1.0, 2.0])))
    assert [bool(reason) for reason in found] == [False, False, True, False]
    assert "processor time" in found[2]
    assert not any(verdicts(*(measured(plain(0.1), share=1.0, prompt=i) for i in range(3))))


@pytest.mark.parametrize(("others", "free", "is_disturbed"), [(0.0, 0.1, False), (0.7, 0.0, True), (30.0, 30.0, False)])
def test_other_programs_disturb_where_no_processor_is_free(others: float, free: float, is_disturbed: bool) -> None:
    """All the time, too: every run of these is alike."""
    run = measured(plain(0.1))
    run = run.model_copy(update={"others": others * run.wall, "free": free * run.wall})
    assert [bool(reason) for reason in verdicts(run, run)] == [is_disturbed] * 2


def test_the_whole_machines_times_go_on_and_hold_this_process() -> None:
    began, own = machine_times(), time.process_time()
    if began is None:
        pytest.skip("nobody counts them here")
    while time.process_time() - own < 0.2:
        pass
    busy, _ = machine_times()
    assert busy - began[0] > 0.1


def test_on_a_gpu_processor_time_says_nothing_and_gaps_and_repeats_do() -> None:
    quick, slow = measured(plain(0.1, 21), None), measured(plain(0.3, 21), None, repeat=1)
    first, second, third = verdicts(quick, slow, measured(stalled(3.1), None, prompt=1))
    assert (first, third) == ("", "a pause of 3.2 s")
    assert "2.4 times as long" in second  # 7.3 s and 3.1 s, prefill included


@pytest.mark.parametrize(
    ("seconds", "is_one"),
    [(0.0, False), (0.2, False), (1.0, True)],
)
def test_a_pause_is_a_gap_that_no_round_explains(seconds: float, is_one: bool) -> None:
    assert bool(pause(stalled(seconds))) is is_one


def test_a_pause_that_changes_nothing_is_none() -> None:
    """In a long text a gap of nine rounds is no measure of the text's speed."""
    assert pause(stalled(0.8, tokens=21)) is not None
    assert pause(stalled(0.8, tokens=401)) is None


def test_what_is_disturbed_every_time_stands_and_what_is_so_once_is_left_out() -> None:
    runs = Runs(["base", "x"], ["code", "code"])
    for prompt in (0, 1):
        for repeat in (0, 1):
            for name in ("base", "x"):
                always = prompt == 0 and name == "x"
                bad = always or (prompt == 1 and repeat == 1 and name == "base")
                for _ in range(3 if bad else 1):
                    run = measured(stalled(5.0) if bad else plain(0.1, 21), None, repeat, prompt)
                    runs.add(run.model_copy(update={"contender": name}))
    (_, everything), (steady, kept) = runs.turns("x", 0), runs.turns("x", 1)
    assert (everything, len(steady), kept) == (2, 1, 0)
    assert sorted((run.contender, run.prompt, run.outcome) for run in runs.disturbed()) == [
        ("base", 1, "left out"),
        ("x", 0, "kept"),
        ("x", 0, "kept"),
    ]


def test_an_unfinished_turn_is_compared_with_nothing() -> None:
    runs = Runs(["base", "x"], ["code", "maths"])
    for name, prompt in (("base", 0), ("x", 0), ("base", 1)):
        runs.add(measured(plain(0.1), prompt=prompt).model_copy(update={"contender": name}))
    whole = runs.whole()
    assert (whole.prompts("code"), whole.prompts("maths"), whole.contenders) == ([0], [], ["base", "x"])


def test_before_a_turn_is_whole_those_are_compared_who_were_there() -> None:
    runs = Runs(["base", "x", "y"], ["code"])
    assert runs.whole().prompts("code") == []
    for name in ("base", "x"):
        runs.add(measured(plain(0.1)).model_copy(update={"contender": name}))
    assert runs.whole().contenders == ["base", "x"]


# --- In a benchmark ---


class Scripted:
    """A contender whose runs are made up: `steps` are the seconds a token of one run after the other."""

    def __init__(self, name: str, *steps: float) -> None:
        self.name, self.steps = name, iter(steps)

    def write(self, settings: Settings, stop: threading.Event = NEVER) -> Written:
        return Written([1, 2, 3], plain(next(self.steps), 21))


class Clocks:
    """Wall and processor: each run takes a second of both, but the `slow`th (from 0) gets half a processor."""

    def __init__(self, slow: set[int]) -> None:
        self.slow, self.calls = slow, 0

    def wall(self) -> float:
        return float(self.calls)

    def processor(self) -> float:
        """Read last of the four readings of a run."""
        self.calls += 1
        run, after = divmod(self.calls - 1, 2)
        return 10.0 * run + (0.5 if run in self.slow else 1.0) * after


def report(contenders: list, slow: set[int], repeats: int = 1) -> Report:
    clocks = Clocks(slow)
    prompts = [("code", "a b c a b"), ("code", "c c a")]
    suite = Suite(tiny_pair(), contenders, prompts, SETTINGS, repeats)
    suite = replace(suite, wall=clocks.wall, processor=clocks.processor, machine=lambda: None)
    suite.run()
    return suite.report()


def test_a_disturbed_run_is_run_again_at_once_and_replaced() -> None:
    """The third run, the baseline's first that counts, is 20 times slower: without a second one the mean would be 6."""
    found = report([Scripted("A", 1.0, 20.0, 1.0, 1.0), Scripted("B", 0.5, 0.5, 0.5)], slow={2})
    assert found.row("B").figures.speedup == pytest.approx(2)
    (run,) = found.disturbed
    assert (run.contender, run.prompt, run.outcome) == ("A", 0, "again")
    assert MARK not in str(speedup_lines(found))


def test_a_run_that_is_disturbed_each_time_is_marked() -> None:
    found = report([Scripted("A", 1.0, 9.0, 20.0, 9.5, 1.0), Scripted("B", 0.5, 0.5, 0.5)], slow={2, 3, 4})
    assert found.row("A", "code").disturbed == found.row("B", "code").disturbed == 1
    assert str(speedup_lines(found)).count(MARK) == 4
    assert found.row("A", "code").figures.gap_max == pytest.approx(9.0), "of what is disturbed the fastest stands"
    assert any(line.startswith(f"{MARK} A, code, prompt 1, repeat 1: it got 50%") for line in found.facts())


def test_a_planted_stall_moves_no_figure_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run, in the middle of whose decoding this process really stands still."""
    loaded, draws, real = tiny_pair(), [], decoding.draw

    def draw(p, u):
        draws.append(u)
        if len(draws) == 8 + 6:  # behind the warm-up's tokens
            time.sleep(1.5)
        return real(p, u)

    monkeypatch.setattr(decoding, "draw", draw)
    kept: list[Measured] = []
    contenders = [Ours("baseline", loaded), speculative(loaded, "prompt-lookup", 2)]
    suite = Suite(loaded, contenders, [("code", "a b c a b")], SETTINGS, 1, keep=kept.append)
    suite = replace(suite, processor=suite.wall, machine=lambda: None)  # whatever else this machine is doing
    suite.run()
    found = suite.report()
    first, second, *_ = kept
    assert first.contender == second.contender == "baseline"
    assert max(first.metrics.gaps) > 1.5 > found.row("baseline").figures.gap_max
    (run,) = [run for run in found.disturbed if run.contender == "baseline"]
    assert run.prompt == run.repeat == 0
    assert run.outcome == "again"
    assert any(line.startswith("Disturbed from outside") for line in found.facts())
