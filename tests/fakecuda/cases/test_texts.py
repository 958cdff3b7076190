"""Every lane writes on a GPU what it writes on the CPU, with recorded passes and without a number left behind."""

from __future__ import annotations

import pytest

from tests.fakecuda import machine
from tests.fakecuda.cases.lanes import LANES, SAMPLERS, Models, expected


@pytest.fixture(scope="module")
def models() -> Models:
    """Shared: later lanes use, and evict, what earlier ones have recorded."""
    return Models("cuda:0")


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("lane", LANES)
def test_the_text_is_the_cpus(models: Models, lane: str, sampler: str, record: bool) -> None:
    first = models.text(lane, SAMPLERS[sampler], record)
    captures = machine.counts.captures
    second = models.text(lane, SAMPLERS[sampler], record)
    assert first == second == expected(lane, sampler, record)
    assert machine.counts.replays > 0
    assert machine.counts.captures == captures  # the second run found all its recordings
