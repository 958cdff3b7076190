"""Every shape of weight is multiplied in the way that was found fastest, and never otherwise than right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from specdemo.models import kept, kernels, layers
from specdemo.models.kernels import KERNELS, Way, choose
from specdemo.models.layers import linear

HUMP = {1: 10.0, 2: 14.1, 3: 13.4, 5: 10.7, 8: 12.0, 17: 15.0}


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path))
    memories = (kernels.fastest, kernels.works)
    for memory in memories:
        memory.cache_clear()
    yield
    for memory in memories:
        memory.cache_clear()


def always(monkeypatch: pytest.MonkeyPatch, kernel: str, rows: dict[int, int] | None = None) -> None:
    monkeypatch.setattr(layers, "fastest", lambda *_: Way(kernel=kernel, rows=rows or {}))


def test_the_kernel_that_is_fastest_over_all_short_passes_is_taken() -> None:
    steady = {1: 11.0, 2: 11.0, 3: 11.0, 5: 11.0, 8: 11.0, 17: 99.0}
    assert choose({"plain": HUMP, "packed": steady}).kernel == "packed"
    assert choose({"plain": HUMP, "packed": {rows: 2 * time for rows, time in HUMP.items()}}).kernel == "plain"


def test_a_product_that_is_slower_than_a_longer_one_is_made_longer() -> None:
    way = choose({"plain": HUMP})
    assert way.rows == {2: 5, 3: 5}
    times = [HUMP[way.rows.get(rows, rows)] for rows in HUMP]
    assert times == sorted(times)


def test_noise_makes_no_product_longer() -> None:
    assert choose({"plain": {1: 10.0, 2: 10.5, 3: 10.1, 5: 10.2, 8: 11.0}}).rows == {}


@pytest.mark.parametrize("kernel", [name for name in KERNELS if kernels.works(name)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(600,), (1, 600), (3, 600), (1, 3, 600), (2, 2, 600), (1, 40, 600)])
def test_every_way_gives_the_same_product(
    kernel: str, bias: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, added, x = torch.randn(2048, 600), torch.randn(2048) if bias else None, torch.randn(shape)
    expected = F.linear(x, weight, added)
    always(monkeypatch, kernel, {1: 2, 3: 5, 4: 8})
    found = linear(weight, added, coarse=True)(x)
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < (1e-2 if kernel == "coarse" else 1e-5)


def test_a_target_is_never_multiplied_coarsely(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(kernels, "works", lambda name: True)
    monkeypatch.setattr(kernels, "measure", lambda rows, columns, names: asked.append(names) or {"plain": HUMP})
    linear(torch.randn(512, 600))
    linear(torch.randn(512, 600), coarse=True)
    assert asked == [["plain", "packed"], ["plain", "packed", "coarse"]]


def test_a_processor_that_refuses_a_kernel_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN packs no bfloat16 where there is only AVX2, and other builds of torch have no such operators."""

    def refuse(*_) -> None:
        raise RuntimeError("bf16 path needs the cpu support avx512bw")

    monkeypatch.setitem(KERNELS, "packed", refuse)
    monkeypatch.setitem(KERNELS, "coarse", refuse)
    assert not kernels.works("packed")
    assert linear(torch.randn(2048, 600), coarse=True).func is F.linear


def test_a_shape_is_measured_once_for_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(kernels, "works", lambda name: name != "coarse")
    monkeypatch.setattr(kernels, "measure", lambda *shape: calls.append(shape) or {"plain": HUMP, "packed": HUMP})
    first = kernels.fastest(512, 600, False)
    kernels.fastest.cache_clear()  # as in another process
    assert kernels.fastest(512, 600, False) == first
    assert len(calls) == 1
    monkeypatch.setattr(kept, "processor_name", lambda device: "another one")
    kernels.fastest.cache_clear()
    kernels.fastest(512, 600, False)
    assert len(calls) == 2


def test_measuring_times_every_kernel_at_every_length() -> None:
    seconds = kernels.measure(128, 300, ["plain"])
    assert list(seconds) == ["plain"]
    assert list(seconds["plain"]) == list(kernels._ROWS)
    assert all(0 < time < float("inf") for time in seconds["plain"].values())


def test_what_cannot_be_written_is_not_kept_and_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path / "file" / "below"))
    kept.keep("x", 1)
    assert kept.recall("x") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"measured": 3}', "\x00"])
def test_a_damaged_memory_is_made_again(content: str) -> None:
    kept.keep("x", 1)
    kept._file().write_text(content)
    assert kept.recall("x") is None
    kept.keep("x", 2)
    assert kept.recall("x") == 2
