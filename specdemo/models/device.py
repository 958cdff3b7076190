"""Where to compute and in what precision, how many threads, how much memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import Tensor

from specdemo.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str | None = None) -> torch.device:
    """The device asked for, or the best one here: cuda, then mps, then cpu. Raises UserError for one that is not."""
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name is None:
        return torch.device(available[0])
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in available:
        raise UserError(f"There is no device {name!r} here; choose one of: {', '.join(available)}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"There is no device {name!r} here: this machine has {torch.cuda.device_count()} CUDA device(s)."
        )
    return device


def choose_dtype(device: torch.device, name: str | None = None) -> torch.dtype:
    """The dtype asked for, or the device's own: cpu fp32, cuda bf16 where it has it, else fp16."""
    if name is not None:
        if name not in DTYPES:
            raise UserError(f"There is no dtype {name!r}; choose one of: {', '.join(DTYPES)}.")
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float16 if device.type == "mps" else torch.float32


def to_device(ids: list[int] | Tensor, device: torch.device) -> Tensor:
    """Token ids as a tensor there. On a GPU the copy is queued from pinned memory: a plain one would wait for it."""
    if isinstance(ids, Tensor):
        return ids.to(device)
    tensor = torch.tensor(ids, dtype=torch.long)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that some work takes, what it left running on a GPU included."""
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known == dtype)


def cpu_quota() -> int:
    """Processors that this process may really use: a container's CPU quota counts, not the host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file, parse in ((Path("/sys/fs/cgroup/cpu.max"), _quota_v2), (Path("/sys/fs/cgroup/cpu"), _quota_v1)):
        try:
            quota = parse(file)
        except (OSError, ValueError):
            continue
        if quota is not None:
            return max(1, min(cores, round(quota)))
    return cores


def use_cpu_quota() -> None:
    """Let torch compute with as many threads as this process may really use, unless the user has said how many."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cpu_quota())


def _quota_v2(file: Path) -> float | None:
    quota, period = file.read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())


def free_memory(device: torch.device) -> int:
    """Bytes that models may take: the device's free memory, on the CPU what this machine and container still have."""
    if device.type == "cuda":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    free = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, limit - used)
    except (OSError, ValueError):  # no container limit ("max") or no cgroup at all
        return free


def processor_name(device: torch.device) -> str:
    """What to call the hardware in a trace."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
