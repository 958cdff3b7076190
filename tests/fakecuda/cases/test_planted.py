"""Bugs that CUDA graphs invite, planted one at a time: tests on a device that misses them say little.

Each is a patch of the product, in force while a lane runs twice (the second run uses the first one's recordings) and is
compared with what the CPU writes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pytest
import torch
from torch import Tensor

from specdemo.models import graphs
from specdemo.models.block import Place
from specdemo.models.cache import KVCache
from specdemo.models.graphs import _Pass
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.tree import Tree
from tests.fakecuda.cases.lanes import SAMPLERS, Models, expected

LANE, SAMPLER = "draft-model", "temperature"
Plant = Callable[[], AbstractContextManager]
Ragged = Callable[[KVCache, int, Tensor, int], Place]


def outcome(lane: str = LANE) -> str:
    """What becomes of a lane on a GPU: "the same" as on the CPU, "another text", or the error that it meets."""
    models = Models("cuda:0")
    try:
        texts = [models.text(lane, SAMPLERS[SAMPLER]) for _ in range(2)]
    except Exception as error:  # noqa: BLE001 (a bug may show as anything)
        return str(error)
    return "the same" if all(text == expected(lane, SAMPLER) for text in texts) else "another text"


# --- Seams ---


def places(change: Callable[[Ragged, KVCache, int, Tensor, int], Place]) -> AbstractContextManager:
    """Another way to say where a recorded pass stands; `change` gets the right one first."""
    right = KVCache.ragged
    return mock.patch.object(KVCache, "ragged", lambda *given: change(right, *given))


def recordings(change: Callable[[_Pass], None]) -> AbstractContextManager:
    """Something done to every recording when it is made."""
    right = _Pass.__init__

    def init(self: _Pass, *args: object, **kwargs: object) -> None:
        right(self, *args, **kwargs)
        with torch.inference_mode():
            change(self)

    return mock.patch.object(_Pass, "__init__", init)


def around_replays(change: Callable[[_Pass, Callable[[], None]], None]) -> AbstractContextManager:
    """Something done instead of replaying; `change` gets the right replay."""

    def wrapped(recording: _Pass) -> None:
        right = recording.replay
        recording.replay = torch.inference_mode()(lambda: change(recording, right))

    return recordings(wrapped)


# --- Bugs ---


def place_of_the_recording_in_every_replay() -> AbstractContextManager:
    """The place is the host's number, which a graph keeps."""
    return places(lambda right, cache, k, starts, end: right(cache, k, torch.full_like(starts, cache.lengths[0]), end))


def place_made_before_the_recording() -> AbstractContextManager:
    """Mask and rotations are those of the warm-up, kept."""
    known: dict[tuple[KVCache, int, int], Place] = {}

    def change(right: Ragged, cache: KVCache, k: int, starts: Tensor, end: int) -> Place:
        return known.setdefault((cache, k, end), right(cache, k, starts, end))

    return places(change)


def positions_on_the_cpu() -> AbstractContextManager:
    def change(right: Ragged, cache: KVCache, k: int, starts: Tensor, end: int) -> Place:
        place = right(cache, k, starts, end)
        return Place(starts[:, None] + torch.arange(k), place.end, place.cos, place.sin, place.mask)

    return places(change)


def wait_inside_the_recording() -> AbstractContextManager:
    def change(right: Ragged, cache: KVCache, k: int, starts: Tensor, end: int) -> Place:
        return right(cache, k, starts, max(end, int(starts[0])))

    return places(change)


def host_tensor_inside_the_recording() -> AbstractContextManager:
    def change(right: Ragged, cache: KVCache, k: int, starts: Tensor, end: int) -> Place:
        return right(cache, k, starts + torch.tensor([0], device=starts.device), end)

    return places(change)


def inputs_replaced_instead_of_written() -> AbstractContextManager:
    """New tensors for the inputs: the graph reads the old ones."""

    def change(recording: _Pass) -> None:
        recording.ids, recording.starts = recording.ids.clone(), recording.starts.clone()

    return recordings(change)


def place_written_after_the_replay() -> AbstractContextManager:
    """Every replay runs at the place of the one before."""
    before: dict[_Pass, Tensor] = {}

    def change(recording: _Pass, right: Callable[[], None]) -> None:
        wanted = recording.starts.clone()
        recording.starts.copy_(before.get(recording, torch.zeros_like(wanted)))
        right()
        before[recording] = wanted

    return around_replays(change)


def logits_read_before_the_replay() -> AbstractContextManager:
    results: dict[_Pass, Tensor] = {}

    def change(recording: _Pass, right: Callable[[], None]) -> None:
        written = results.setdefault(recording, recording.logits)
        recording.logits = written.clone()
        right()

    return around_replays(change)


def logits_read_after_another_replay() -> AbstractContextManager:
    """A result is read when a graph that was recorded earlier, in the same pool, has run again."""
    right = LeanRunner.forward

    def forward(self: LeanRunner, ids: list[int] | Tensor, tree: Tree | None = None) -> Tensor:
        logits = right(self, ids, tree)
        if self.recorded and self.recorded.knows(1):
            with torch.inference_mode():
                next(iter(self.recorded._recorded.values())).replay()
        return logits

    return mock.patch.object(LeanRunner, "forward", forward)


def cache_made_anew_after_a_round() -> AbstractContextManager:
    """What was recorded writes to the old one."""
    right = LeanRunner.keep

    def keep(self: LeanRunner, length: int, slots: list[int]) -> None:
        right(self, length, slots)
        self.cache.stored = self.cache.stored.clone()
        self.cache.layers = self.cache.stored.unbind(0)

    return mock.patch.object(LeanRunner, "keep", keep)


def cache_left_uninitialised() -> AbstractContextManager:
    """Recorded passes read behind the text too: masked, but 0 times NaN is NaN."""
    right = KVCache.__init__

    def init(self: KVCache, *args: object, **kwargs: object) -> None:
        right(self, *args, **kwargs)
        self.stored = torch.empty_like(self.stored)
        self.layers = self.stored.unbind(0)

    return mock.patch.object(KVCache, "__init__", init)


def recorded_on_the_default_stream() -> AbstractContextManager:
    class OnTheCurrentStream(torch.cuda.graph):
        def __init__(self, cuda_graph: torch.cuda.CUDAGraph, **how: object) -> None:
            super().__init__(cuda_graph, **how | {"stream": torch.cuda.default_stream()})

    return mock.patch.object(torch.cuda, "graph", OnTheCurrentStream)


def nodes_of_a_tree_at_the_first_place() -> AbstractContextManager:
    """All nodes stand directly behind the text."""
    right = graphs._layout

    def layout(tree: Tree, size: int) -> Tensor:
        found = right(tree, size)
        found[:, size] = 0
        return found

    return mock.patch.object(graphs, "_layout", layout)


def nodes_that_fill_a_tree_up_are_seen() -> AbstractContextManager:
    right = graphs._layout

    def layout(tree: Tree, size: int) -> Tensor:
        found = right(tree, size)
        found[: len(tree), len(tree) : size] = 1
        return found

    return mock.patch.object(graphs, "_layout", layout)


PLANTED: dict[Plant, str] = {
    place_of_the_recording_in_every_replay: "another text",
    place_made_before_the_recording: "another text",
    positions_on_the_cpu: "same device",
    wait_inside_the_recording: "during capture",
    host_tensor_inside_the_recording: "during capture",
    inputs_replaced_instead_of_written: "tensor that is gone",
    place_written_after_the_replay: "another text",
    logits_read_before_the_replay: "another text",
    logits_read_after_another_replay: "another text",
    cache_made_anew_after_a_round: "tensor that is gone",
    cache_left_uninitialised: "another text",
    recorded_on_the_default_stream: "non-default stream",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_noticed(plant: Plant) -> None:
    with plant():
        assert PLANTED[plant] in outcome()


@pytest.mark.parametrize("plant", [nodes_of_a_tree_at_the_first_place, nodes_that_fill_a_tree_up_are_seen])
def test_so_is_one_in_a_trees_shape(plant: Plant) -> None:
    with plant():
        assert outcome("eagle") == "another text"


@pytest.mark.parametrize("lane", [LANE, "eagle"])
def test_without_a_bug_nothing_is(lane: str) -> None:
    assert outcome(lane) == "the same"
