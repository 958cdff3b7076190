"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from specdemo.models.device import cpu_quota, use_cpu_quota
from specdemo.models.loading import LoadedPair, load_pair
from specdemo.models.pairs import DEFAULT_PAIR, PAIRS


def pytest_configure() -> None:
    """The workers of a suite share the cores, and so does what they start: torch's threads wait by spinning, and where
    there are more of them than cores they hold each other up."""
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_quota() // int(workers))))
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


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
