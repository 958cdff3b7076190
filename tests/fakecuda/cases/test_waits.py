"""How often a round waits for the device, and what it launches beside recorded passes."""

from __future__ import annotations

from collections import Counter

import pytest

from specdemo.drafters import DRAFTERS
from specdemo.events import Round
from tests.fakecuda import machine
from tests.fakecuda.cases.lanes import LANES, SAMPLERS, Models

WARM = 2  # rounds in which a lane may still read its prompt


@pytest.fixture(scope="module")
def models() -> Models:
    return Models("cuda:0")


def rounds_of(models: Models, lane: str, sampler: str, record: bool) -> list[tuple[Counter, int, int]]:
    """Waits by line, launches beside replays, and replays, of each round of a second run."""
    models.text(lane, SAMPLERS[sampler], record)
    counted = []
    machine.reset_counts()
    for event in models.events(lane, SAMPLERS[sampler], record):
        if isinstance(event, Round):
            counts = machine.counts
            counted.append((counts.waits.copy(), counts.launches - counts.replays, counts.replays))
            machine.reset_counts()
    return counted[WARM:]


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("lane", LANES)
def test_a_round_waits_a_few_times_only(models: Models, lane: str, record: bool) -> None:
    is_tree = lane in DRAFTERS and DRAFTERS[lane].is_tree
    for waits, launches, replays in rounds_of(models, lane, "temperature", record):
        print(sum(waits.values()), launches, replays, dict(waits))
        assert sum(waits.values()) <= (3 if is_tree else 2) + record
