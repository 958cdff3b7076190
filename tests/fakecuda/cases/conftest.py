"""Every test finds the machine as after a start."""

from __future__ import annotations

import gc
import os

import pytest

from tests.fakecuda import machine


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_remembered(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a pretended GPU takes is nobody's figure."""
    os.environ["SPECDEMO_CACHE"] = str(tmp_path_factory.mktemp("cache"))


gc.freeze()  # what was imported stays, and need not be looked at before every test


@pytest.fixture(autouse=True)
def _machine_as_new() -> None:
    gc.collect()  # what an earlier test has left in cycles goes now, not while this one counts
    machine.reset()
