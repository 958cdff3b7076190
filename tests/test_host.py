"""The host: loads in the background, says how far it is, and stays usable whatever went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import specdemo.host as host_module
from specdemo.errors import UserError
from specdemo.events import LaneEvent, RaceEnd, RaceStart
from specdemo.host import Host
from specdemo.models.pairs import OWN_PAIR
from specdemo.settings import Settings
from tests.test_loading import save_model


def wait(host: Host) -> None:
    for _ in range(600):
        status = host.status()
        if status.ready or status.error:
            return
        time.sleep(0.05)
    raise AssertionError("loading never ended")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(str(save_model(tmp_path / "target")), str(save_model(tmp_path / "draft", seed=2)), device="cpu")
    made.prepare(made.first_pair)
    wait(made)
    return made


def settings(**values) -> Settings:
    return Settings.checked(**{"prompt": "a", "pair": OWN_PAIR, "max_tokens": 12, "chat": False, **values})


def test_an_own_pair_is_offered_first_and_runs(host: Host) -> None:
    assert host.first_pair == OWN_PAIR == host.pairs()[0].id
    assert host.status().ready
    assert "target ← draft · cpu · fp32" in host.headline()
    events = list(host.race(settings(), threading.Event()))
    assert isinstance(events[0], RaceStart)
    assert isinstance(events[-1], RaceEnd)


def test_a_pair_that_cannot_be_fetched_takes_nothing_from_the_one_in_use(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(pair, progress) -> None:
        raise UserError("It is nowhere.")

    monkeypatch.setattr(host_module, "fetch_pair", nowhere)
    host.prepare("smollm2-1.7b")
    wait(host)
    assert host.status().error == "It is nowhere."
    assert isinstance(list(host.race(settings(), threading.Event()))[-1], RaceEnd)
    host.prepare(OWN_PAIR)
    assert host.status().ready


def test_a_target_without_a_draft_offers_lookup_first(tmp_path: Path) -> None:
    assert Host(str(tmp_path), device="cpu").drafters()[0].id == "prompt-lookup"
    assert Host(device="cpu").drafters()[0].id == "draft-model"


def test_preparing_what_is_loaded_does_nothing(host: Host) -> None:
    host.prepare(OWN_PAIR)
    assert host.status().ready


def test_a_broken_model_is_explained_and_the_next_pair_works(host: Host, tmp_path: Path) -> None:
    broken = Host(str(tmp_path / "nothing-here"), device="cpu")
    broken.prepare(broken.first_pair)
    wait(broken)
    assert "There is no file or folder" in broken.status().error
    with pytest.raises(UserError, match="not loaded yet"):
        next(broken.race(settings(), threading.Event()))
    save_model(tmp_path / "nothing-here")
    broken.prepare(broken.first_pair)  # the mistake is mended: the same click tries again
    wait(broken)
    assert broken.status().ready


def test_an_unknown_pair_and_one_that_does_not_fit_are_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no pair 'x'"):
        host.prepare("x")
    monkeypatch.setattr(host_module, "free_memory", lambda device: 1_000_000_000)
    with pytest.raises(UserError, match="cannot run here: it needs"):
        host.prepare("qwen2.5-7b")
    assert not next(info for info in host.pairs() if info.id == "qwen2.5-7b").available
    assert host.status().ready


@pytest.mark.parametrize("message", ["[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", ""])
def test_running_out_of_memory_is_explained_and_the_next_run_works(
    host: Host, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = host_module.race

    def out_of_memory(*_) -> Iterator:
        raise RuntimeError(message) if message else torch.OutOfMemoryError("CUDA out of memory")
        yield

    monkeypatch.setattr(host_module, "race", out_of_memory)
    with pytest.raises(UserError, match="memory is full"):
        list(host.race(settings(), threading.Event()))
    monkeypatch.setattr(host_module, "race", right)
    assert isinstance(list(host.race(settings(), threading.Event()))[-1], RaceEnd)


def test_a_run_that_is_closed_in_the_middle_frees_the_device(host: Host) -> None:
    run = host.race(settings(), threading.Event())
    while not isinstance(next(run), LaneEvent):
        pass
    run.close()
    assert isinstance(list(host.race(settings(), threading.Event()))[-1], RaceEnd)
