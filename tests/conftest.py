"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest
import torch

from specdemo.models.device import use_cpu_quota
from specdemo.models.loading import LoadedPair, load_pair
from specdemo.models.pairs import DEFAULT_PAIR, PAIRS


@pytest.fixture(scope="session")
def default_pair() -> LoadedPair:
    """The real default pair on the CPU, fetched and converted if this machine has never done so."""
    use_cpu_quota()
    return load_pair(PAIRS[DEFAULT_PAIR], torch.device("cpu"), torch.float32)
