"""Where to compute and in what precision, how many threads, how much memory."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from torch import Tensor

from specdemo.errors import UserError

_CGROUPS, _SELF = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str | None = None) -> torch.device:
    """The device asked for, or the best one here: cuda, then mps, then cpu. Raises UserError for one that is not."""
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    try:
        device = torch.device(available[0] if name is None else name)
    except RuntimeError:
        device = None
    if device is None or device.type not in available:
        raise UserError(f"There is no device {name!r} here; choose one of: {', '.join(available)}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"There is no device {name!r} here: this machine has {torch.cuda.device_count()} CUDA device(s)."
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # tensors have a number, and so must what they are on
    return device


def enter(device: torch.device) -> None:
    """Let this thread's streams, events and graphs be made on a GPU: each thread begins with the first one's."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def choose_dtype(device: torch.device, name: str | None = None) -> torch.dtype:
    """The dtype asked for, or the device's own: cpu fp32, cuda bf16 where it computes in it itself, else fp16."""
    if name is not None:
        if name not in DTYPES:
            raise UserError(f"There is no dtype {name!r}; choose one of: {', '.join(DTYPES)}.")
        return DTYPES[name]
    if device.type == "cuda":
        with torch.cuda.device(device):
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    return torch.float16 if device.type == "mps" else torch.float32


def to_device(values: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Token ids, or any tensor, there. What goes to a GPU is queued from pinned memory: a plain copy would wait."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.long)
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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
    quotas = [quota for quota in map(_quota, _cgroups("cpu")) if quota is not None]
    return max(1, round(min([cores, *quotas])))


def use_cpu_quota() -> None:
    """Let torch compute with as many threads as this process may really use, unless the user has said how many."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cpu_quota())


def _cgroups(controller: str) -> list[Path]:
    """The control groups that this process is in, from its own (systemd, say, gives every service one) up to the root:
    a limit of any of them binds. In version 2 all controllers share one tree, in version 1 each has its own."""
    found = []
    for line in _lines(_SELF):
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _CGROUPS / controller if controllers else _CGROUPS
            own = root / group.lstrip("/")
            found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return [folder for folder in dict.fromkeys([*found, _CGROUPS, _CGROUPS / controller]) if folder.is_dir()]


def _lines(file: Path) -> list[str]:
    """A system file's lines; none where there is no such file, or it may not be read."""
    try:
        return file.read_text().splitlines()
    except (OSError, ValueError):
        return []


def _quota(group: Path) -> float | None:
    """Processors that a control group may use; None where it has no limit of its own."""
    words = " ".join(_lines(group / "cpu.max")).split()
    words = words or [*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or nothing there
        return None
    return quota / period if quota > 0 < period else None


def free_memory(device: torch.device) -> int:
    """Bytes that models may take: the device's free memory, on the CPU what this machine and container still have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = [_memory_left(group) for group in _cgroups("memory")]
    return min([psutil.virtual_memory().available, *(bytes_ for bytes_ in left if bytes_ is not None)])


def workspace_bytes(device: torch.device) -> int:
    """What torch gives cuBLAS for each stream that multiplies; 0 where there is no CUDA."""
    if device.type != "cuda":
        return 0
    return (32 if torch.cuda.get_device_properties(device).major >= 9 else 8) << 20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch has a class for GPUs' and raises a bare RuntimeError from the CPU's."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def is_lost(error: BaseException) -> bool:
    """Whether a GPU has failed in a way that every later call of this process will meet again."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def release(device: torch.device) -> None:
    """Give back to the device what nobody holds any more: torch keeps freed memory, and cycles keep tensors."""
    gc.collect()
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()


def _memory_left(group: Path) -> int | None:
    """Bytes until a control group's limit; None where it has none of its own. Files that were read and lie about count
    as used, though the kernel drops them where room is wanted."""
    limits = _lines(group / "memory.max") or _lines(group / "memory.limit_in_bytes")
    used = _lines(group / "memory.current") or _lines(group / "memory.usage_in_bytes")
    stat = dict(line.split()[:2] for line in _lines(group / "memory.stat") if " " in line)
    try:
        idle = int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
        return int(limits[0]) - int(used[0]) + idle
    except (ValueError, IndexError):  # "max", or nothing there
        return None


def processor_name(device: torch.device) -> str:
    """What to call the hardware in a trace."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
