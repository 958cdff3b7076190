"""Was a run disturbed from outside? Another program on the machine makes one decoder slow and spares the next, and a
mean over such runs is a number about the other program.

Nothing here knows how fast anything should be: a run is compared with the others of its benchmark. Four signs, each
far outside of what decoders do of themselves (on two idle cores shares lay within 10 % of their contender's median, and
no gap was 3 times the median of its run):

- other programs computed while no processor was free (where the system counts them all, as Linux does). It is the one
  sign of a program that goes on all the time, and threads that wait for each other in a loop hide from the next one;
- the process got less processor time a second than this contender otherwise gets. Two threads that compute count 2
  seconds a second, a lookup less: the measure is the contender's own upper quartile (disturbances take and never give,
  and runs that are repeated because they were disturbed are in it too). On a GPU the processor waits, and how it waits
  says nothing;
- a single gap between bursts is far longer than the others of the run, and a good part of it;
- the run took far longer than the same contender took for the same prompt another time.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from specdemo.events import GreedyVerdict
from specdemo.metrics import LaneMetrics, percentile

_OTHERS = 0.2  # processors that other programs may have
_FREE = 0.25  # processors that must be free beside them
_SHORT = 0.2  # seconds of a run in which a scheduler's ordinary turns are a good part
_USUAL = 0.75  # the quantile of a contender's shares
_LEAST_SHARE = 0.8  # of the usual processor time a second
_LONG_GAP = 8.0  # median gaps of the run
_LARGE_GAP = 0.1  # of the run's decode seconds
_SLOW = 1.5  # times the fastest run of the same prompt


class Measured(BaseModel):
    """A text that a contender wrote, and its times: a line of a benchmark's journal.

    prompt: index of the plan's prompts, -1 in a warm-up. repeat: from 0; what was disturbed is measured again under the
    same number. wall, processor: seconds of the clock on the wall, and of all threads of this process; processor is
    None where it says nothing (GPUs). others, free: processor seconds that other programs had, and that nobody had,
    where they are counted. verdict: the text beside the baseline's, where it was compared.
    """

    model_config = ConfigDict(extra="forbid")

    contender: str
    prompt: int
    repeat: int
    ids: list[int]
    metrics: LaneMetrics
    wall: float
    processor: float | None = None
    others: float | None = None
    free: float | None = None
    verdict: GreedyVerdict | None = None

    @property
    def share(self) -> float | None:
        """Processor seconds a second."""
        return self.processor / self.wall if self.processor is not None and self.wall else None

    @property
    def pace(self) -> float:
        """Seconds a token, prefill included."""
        return self.metrics.clock / max(1, self.metrics.tokens)


class Steadiness:
    """Learns what is usual in a benchmark, and says what is not."""

    def __init__(self) -> None:
        self._shares: dict[str, list[float]] = defaultdict(list)
        self._paces: dict[tuple[str, int], list[float]] = defaultdict(list)

    def learn(self, run: Measured) -> None:
        if run.share is not None:
            self._shares[run.contender].append(run.share)
        if run.prompt >= 0:
            self._paces[run.contender, run.prompt].append(run.pace)

    def disturbance(self, run: Measured) -> str:
        """What disturbed a run that was learned, in words; empty where nothing did, or nobody can tell."""
        if run.wall < _SHORT:
            return ""
        if run.others is not None and run.others > _OTHERS * run.wall and run.free < _FREE * run.wall:
            return f"other programs had {run.others / run.wall:.1f} processors, and none was free"
        if run.share is not None:
            got = run.share / percentile(self._shares[run.contender], _USUAL)
            if got < _LEAST_SHARE:
                return f"it got {got:.0%} of its usual processor time"
        if gap := pause(run.metrics):
            return f"a pause of {gap:.2g} s"
        fastest = min(self._paces[run.contender, run.prompt])
        if run.pace > _SLOW * fastest:
            return f"it took {run.pace / fastest:.1f} times as long as another time"
        return ""


def machine_times() -> tuple[float, float] | None:
    """Processor seconds so far of all programs (and of a hypervisor's other guests), and those that nobody had; None
    where the system does not say."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        user, nice, system, idle, waiting, interrupts, soft, stolen = map(int, first.split()[1:9])
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft + stolen) / ticks, (idle + waiting) / ticks


def pause(lane: LaneMetrics) -> float | None:
    """Seconds that a lane stood still: its longest gap, if that is none of its rounds."""
    gaps = lane.gaps
    if len(gaps) < 3:
        return None
    longest, usual = max(gaps), statistics.median(gaps)
    return longest if longest > _LONG_GAP * usual and longest - usual > _LARGE_GAP * sum(gaps) else None
