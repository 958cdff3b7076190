"""Fixtures that several test modules share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from specdemo.models.device import use_cpu_quota
from specdemo.models.loading import LoadedPair, load_pair
from specdemo.models.pairs import DEFAULT_PAIR, PAIRS


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C means something. A suite started in the background finds it ignored, and so would all that it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def default_pair() -> LoadedPair:
    """The real default pair on the CPU, fetched and converted if this machine has never done so."""
    use_cpu_quota()
    return load_pair(PAIRS[DEFAULT_PAIR], torch.device("cpu"), torch.float32)
