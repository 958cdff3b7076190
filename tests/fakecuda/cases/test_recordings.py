"""Recorded passes where memory, threads and other recordings get in the way."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch
from torch import Tensor

from specdemo.models.block import Place
from specdemo.models.cache import KVCache
from specdemo.models.device import free_memory
from specdemo.models.lean_runner import LeanLanguageModel
from tests.fakecuda import machine
from tests.fakecuda.cases.lanes import CPU, Models, in_a_thread

GPU = torch.device("cuda:0")
TAPS = ((), (1,), (2,), (3,))  # one set more than a model keeps caches for


def logits(target: LeanLanguageModel, taps: tuple[int, ...] = ()) -> Tensor:
    """Of two passes of one token, which a GPU replays."""
    runner = target.runner(64, passes=[1], taps=taps)
    runner.prefill([1, 2, 3])
    return torch.cat([runner.forward([token]).cpu() for token in (4, 5)])


def assert_the_cpus(found: object) -> None:
    assert isinstance(found, Tensor), found
    torch.testing.assert_close(found, logits(CPU.target), atol=1e-4, rtol=1e-4)
    assert machine.counts.replays > 0


def test_a_replayed_pass_is_the_cpus() -> None:
    assert_the_cpus(logits(Models("cuda:0").target))


def test_recordings_that_are_dropped_leave_the_others_alone() -> None:
    target = Models("cuda:0").target
    runners = [target.runner(64, passes=[1], taps=taps) for taps in TAPS]
    del runners  # one of their caches finds no place among those that wait
    gc.collect()
    for taps in TAPS:
        assert_the_cpus(logits(target, taps))


def test_a_thread_that_has_chosen_no_device_records_on_the_models() -> None:
    assert_the_cpus(in_a_thread(lambda: logits(Models("cuda:1").target)))


def test_another_thread_may_ask_for_memory_while_passes_are_recorded() -> None:
    right, answers = KVCache.ragged, []

    def ragged(self: KVCache, k: int, starts: Tensor, end: int) -> Place:
        answers.append(in_a_thread(lambda: free_memory(GPU)))
        return right(self, k, starts, end)

    with mock.patch.object(KVCache, "ragged", ragged):
        found = in_a_thread(lambda: logits(Models("cuda:0").target))
    assert_the_cpus(found)
    assert all(isinstance(answer, int) for answer in answers)


def test_memory_that_runs_out_anywhere_is_given_back_and_the_next_run_works() -> None:
    target, memory = Models("cuda:0").target, machine.devices[0]
    before, allocations = memory.allocated, memory.allocations
    target.runner(64, passes=[1])
    needed = memory.allocations - allocations
    target._idle.clear()
    assert memory.allocated == before
    for n in range(1, needed + 1):
        memory.fail_at = n
        with pytest.raises(torch.OutOfMemoryError):
            target.runner(64, passes=[1])
        assert memory.allocated == before
    assert_the_cpus(logits(target))
