"""Limits of processors and memory are found in whatever control group sets them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from specdemo.models import device
from specdemo.models.device import cpu_quota, free_memory
from tests.tiny import CPU

V2, V1 = "0::/{}\n", "9:name=systemd:/{0}\n4:memory:/{0}\n1:cpu,cpuacct:/{0}\n0::/\n"


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)


def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, files: dict[str, str]) -> None:
    """Files of control groups, by their path below the root, and what the kernel says of this process."""
    monkeypatch.setattr(device, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(device, "_SELF", tmp_path / "self")
    (tmp_path / "self").write_text(said)
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


OWN = "system.slice/demo.service"


@pytest.mark.parametrize(
    ("said", "files", "expected"),
    [
        ("", {}, 64),
        (V2.format(""), {"cpu.max": "200000 100000\n"}, 2),
        (V2.format(""), {"cpu.max": "max 100000\n"}, 64),
        (V2.format(OWN), {f"{OWN}/cpu.max": "150000 50000\n"}, 3),
        (V2.format(OWN), {f"{OWN}/cpu.max": "max 100000\n", "system.slice/cpu.max": "400000 100000\n"}, 4),
        (V2.format(OWN), {f"{OWN}/cpu.max": "800000 100000\n", "system.slice/cpu.max": "400000 100000\n"}, 4),
        (V2.format(OWN), {f"{OWN}/cpu.max": "10000 100000\n"}, 1),
        (V2.format("/../elsewhere"), {"cpu.max": "500000 100000\n"}, 5),
        (V1.format(OWN), {f"cpu/{OWN}/cpu.cfs_quota_us": "300000\n", f"cpu/{OWN}/cpu.cfs_period_us": "100000\n"}, 3),
        (V1.format("docker/x"), {"cpu/cpu.cfs_quota_us": "600000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6),
        (V1.format(OWN), {f"cpu/{OWN}/cpu.cfs_quota_us": "-1\n", f"cpu/{OWN}/cpu.cfs_period_us": "100000\n"}, 64),
        (V2.format(OWN), {f"{OWN}/cpu.max": "nonsense\n"}, 64),
    ],
)
def test_a_quota_of_any_group_above_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, files: dict[str, str], expected: int
) -> None:
    place(tmp_path, monkeypatch, said, files)
    assert cpu_quota() == expected


@pytest.mark.parametrize(
    ("said", "files"),
    [
        (V2.format(OWN), {f"{OWN}/memory.max": "9000000", f"{OWN}/memory.current": "2000000"}),
        (V2.format(OWN), {"system.slice/memory.max": "8000000", "system.slice/memory.current": "1000000"}),
        (V2.format(""), {"memory.max": "8000000", "memory.current": "1000000"}),
        (
            V2.format(""),
            {"memory.max": "8000000", "memory.current": "5000000", "memory.stat": "anon 1\ninactive_file 4000000\n"},
        ),
        (
            V1.format(OWN),
            {
                f"memory/{OWN}/{name}": size
                for name, size in (("memory.limit_in_bytes", "8000000"), ("memory.usage_in_bytes", "1000000"))
            },
        ),
    ],
)
def test_so_does_a_limit_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, files: dict[str, str]
) -> None:
    place(tmp_path, monkeypatch, said, files)
    assert free_memory(CPU) == 7_000_000


def test_without_a_limit_the_machines_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, monkeypatch, V2.format(OWN), {f"{OWN}/memory.max": "max", f"{OWN}/memory.current": "1000000"})
    assert 0 < free_memory(CPU) <= psutil.virtual_memory().total
