"""Whole races on a pretended GPU: from files, through the host and the page's streamer, on either device."""

from __future__ import annotations

import dataclasses
import gc
import json
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from specdemo.decoding.batch import BatchRequest, decode_batch
from specdemo.errors import UserError
from specdemo.events import End, LaneEvent, RaceEnd, Round
from specdemo.host import Host
from specdemo.models.loading import LoadedPair, load_pair, measured, warm_up
from specdemo.models.pairs import OWN_PAIR, Pair
from specdemo.models.transformers_runner import TransformersLanguageModel
from specdemo.models.tree import ROOT, Tree
from specdemo.race import race
from specdemo.settings import SamplerSettings, Settings
from specdemo.ui.stream import Run, Streamer
from tests.fakecuda import machine
from tests.fakecuda.cases.lanes import in_a_thread
from tests.heads import heads_for
from tests.test_loading import save_model
from tests.tiny import STORE, Tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft on disk."""
    base = tmp_path_factory.mktemp("models")
    target = save_model(base / "target", model=Tiny(8, 1, max_length=4096).oracle)
    return target, save_model(base / "draft", model=Tiny(8, 2, layers=1, max_length=4096).oracle)


def loaded_on(device: str, folders: tuple[Path, Path]) -> LoadedPair:
    """The pair with heads and a store, as if it had come with them."""
    pair = load_pair(Pair("own", "own", *map(str, folders)), torch.device(device), torch.float32)
    pair = dataclasses.replace(pair, heads=heads_for(pair.target), store=STORE)
    warm_up(pair)
    return measured(pair)


@pytest.fixture(scope="module")
def pair(folders: tuple[Path, Path]) -> LoadedPair:
    return loaded_on("cuda:0", folders)


@pytest.fixture(scope="module")
def on_cpu(folders: tuple[Path, Path]) -> LoadedPair:
    return loaded_on("cpu", folders)


def settings(**values: object) -> Settings:
    usual = {"prompt": "a b c a b c", "pair": "own", "max_tokens": 16, "auto_gamma": False, "nodes": 6, "depth": 3}
    return Settings.checked(**usual | values)


def texts(events: list) -> dict[str, list[int]]:
    found = defaultdict(list)
    for event in events:
        if isinstance(event, LaneEvent) and isinstance(event.event, Round):
            found[event.lane] += [token.id for token in event.event.emitted]
    return dict(found)


def run(pair: LoadedPair, **values: object) -> dict[str, list[int]]:
    return texts(list(race(pair, settings(**values), threading.Event())))


# --- Recordings belong to loading ---


def test_no_race_records_anything(pair: LoadedPair) -> None:
    """Whoever races whom, for texts as long as most are: what was recorded at load is enough."""
    before = machine.counts.captures
    for drafter, rival in (("draft-model", ""), ("eagle", "medusa"), ("medusa", "eagle"), ("eagle", "combined-eagle")):
        run(pair, drafter=drafter, rival=rival)
        run(pair, drafter=drafter, rival=rival, temperature=0.7, record=False, prompt="a b " * 300)
    assert machine.counts.captures == before


@pytest.mark.parametrize(
    "values",
    [
        {"drafter": "eagle", "rival": "draft-model", "temperature": 0.8},
        {"drafter": "medusa", "acceptance": "typical", "temperature": 1.0, "mode": "speculative"},
        {"drafter": "eagle", "acceptance": "typical", "temperature": 1.0, "mode": "speculative"},
        {"drafter": "combined", "rival": "prompt-lookup", "temperature": 0.9, "top_p": 0.9, "top_k": 5},
        {"drafter": "early-exit", "rival": "retrieval"},
    ],
    ids=str,
)
def test_a_race_writes_what_the_cpus_writes(pair: LoadedPair, on_cpu: LoadedPair, values: dict) -> None:
    assert run(pair, **values) == run(on_cpu, **values)


def test_rows_of_a_batch_write_what_the_cpus_write(pair: LoadedPair, on_cpu: LoadedPair) -> None:
    request = BatchRequest([[1, 2, 3], [4], [5, 6, 7, 1]], SamplerSettings(temperature=0.8), 12, frozenset(), 3)
    for drafts in (0, 3):
        wanted = decode_batch(on_cpu.target, request, on_cpu.draft if drafts else None, drafts)
        found = decode_batch(pair.target, request, pair.draft if drafts else None, drafts)
        assert found.texts == wanted.texts
        machine.reset_counts()
        again = decode_batch(pair.target, request, pair.draft if drafts else None, drafts)
        assert again.texts == wanted.texts
        assert machine.counts.captures == 0
        decided = Counter({where: n for (_, where), n in machine.counts.waits.items() if "batch" in where})
        assert decided.total() <= again.passes + 1  # one a pass, and one before the clock starts


# --- Devices and threads ---


def test_the_second_gpu_is_used_from_any_thread(folders: tuple[Path, Path], on_cpu: LoadedPair) -> None:
    second = in_a_thread(lambda: loaded_on("cuda:1", folders))
    assert isinstance(second, LoadedPair), second
    held = machine.devices[0].allocated
    values = {"drafter": "eagle", "rival": "draft-model"}
    found = in_a_thread(lambda: run(second, **values))
    assert found == run(on_cpu, **values)
    assert machine.devices[0].allocated == held


def test_a_model_spread_over_two_gpus_moves_the_path_of_a_tree() -> None:
    target = Tiny(8, 1, max_length=256, device="cuda:0")
    model = TransformersLanguageModel(target.oracle, target.transformers.info, 8)
    runner = model.runner(64)
    runner.prefill([1, 2, 3])
    runner.forward([1, 2, 3], Tree((ROOT, ROOT, 0)))
    layer = runner.cache.layers[1]
    layer.keys, layer.values = layer.keys.to("cuda:1"), layer.values.to("cuda:1")  # where accelerate has put it
    wanted = layer.keys[:, :, [0, 1, 2, 3, 5]].cpu()
    runner.keep(3, [3, 5])
    assert runner.length == 5
    torch.testing.assert_close(layer.keys.cpu(), wanted)


def test_the_page_races_while_it_asks_for_memory(folders: tuple[Path, Path]) -> None:
    """The host loads in one thread and races in others; pages ask meanwhile which pairs fit."""
    host = Host(*map(str, folders), dtype="fp32")
    assert host.device == torch.device("cuda", 0)
    host.prepare(host.first_pair)
    while not (status := host.status()).ready:
        assert not status.error
        host.pairs()
        time.sleep(0.01)
    streamer = Streamer(host)
    for number in range(2):
        wanted = settings(pair=OWN_PAIR, drafter="draft-model", rival="early-exit", seed=number)
        followed = Run(wanted)
        updates = in_a_thread(lambda followed=followed: list(streamer.updates(followed)))
        assert isinstance(updates, list), updates
        assert json.loads(followed.deltas[-1])["phase"] == "done", followed.deltas[-1]


# --- What goes wrong ---


def test_a_run_that_is_stopped_or_closed_leaves_nothing_behind(pair: LoadedPair) -> None:
    values = {"drafter": "eagle", "rival": "draft-model", "temperature": 0.8}
    wanted = run(pair, **values)
    stop = threading.Event()
    stopped = race(pair, settings(**values), stop)
    for _ in range(12):
        next(stopped)
    stop.set()
    assert isinstance(list(stopped)[-1], RaceEnd)
    closed = race(pair, settings(**values), threading.Event())
    for _ in range(9):
        next(closed)
    closed.close()
    assert run(pair, **values) == wanted


def test_a_run_of_nan_is_followed_by_a_clean_one(pair: LoadedPair) -> None:
    wanted = run(pair)
    norm = pair.target.model.norm
    right, norm._weight = norm._weight.clone(), norm._weight
    norm._weight.fill_(torch.nan)  # in place: what was recorded reads it there
    ends = [event.event for event in race(pair, settings(), threading.Event()) if isinstance(event, LaneEvent)]
    assert {end.reason for end in ends if isinstance(end, End)} == {"error"}
    norm._weight.copy_(right)
    assert run(pair) == wanted


def test_a_context_shorter_than_the_longest_pass(on_cpu: LoadedPair) -> None:
    short, same = (Tiny(8, 1, max_length=14, device=device).lean for device in ("cuda:0", "cpu"))
    values = {"drafter": "prompt-lookup", "gamma": 16, "prompt": "a b a b a b"}
    pairs = [dataclasses.replace(on_cpu, target=target, heads={}, draft=None) for target in (short, same)]
    assert run(pairs[0], **values) == run(pairs[1], **values)


def test_memory_that_runs_out_in_a_race_is_told_and_the_next_race_runs(folders: tuple[Path, Path]) -> None:
    """At any of the allocations of a run, in turn; the page's sentence each time, and nothing lost."""
    host = Host(*map(str, folders), dtype="fp32")
    host.prepare(host.first_pair)
    while not host.status().ready:
        time.sleep(0.01)
    wanted = settings(pair=OWN_PAIR, drafter="draft-model", max_tokens=4, mode="speculative")

    def whole() -> dict[str, list[int]]:
        return texts(list(host.race(wanted, threading.Event())))

    memory, right = machine.devices[0], whole()
    before = memory.allocations
    assert whole() == right
    needed = memory.allocations - before
    for n in range(1, needed + 1, max(1, needed // 25)):
        memory.fail_at = n
        with pytest.raises(UserError, match="memory is full"):
            whole()
    gc.collect()
    assert whole() == right
