"""How fast plain decoding could be at most here: every token reads every weight once, so memory sets the pace."""

from __future__ import annotations

import time

import torch
from pydantic import BaseModel

from specdemo.models.runner import LanguageModel

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_BUFFER = 1 << 30  # bytes read at a time: more than any cache holds
_REPEATS = 5


class Roofline(BaseModel):
    """bytes_per_token: weights, and keys and values at the mean context. bandwidth: bytes a second that this machine
    reads, measured. fraction: of that bandwidth, what the baseline's decoding reached."""

    bytes_per_token: float
    bandwidth: float
    fraction: float


def measure_bandwidth(device: torch.device, size: int = _BUFFER) -> float:
    """Bytes a second at which weights can be read: the best of a few sums and matrix-vector products over a buffer
    that no cache holds."""
    rows = torch.ones(size // 4 // 4096, 4096, device=device)
    vector = torch.ones(4096, device=device)
    best = 0.0
    for read in (rows.sum, lambda: rows @ vector):
        for _ in range(_REPEATS):
            _wait(device)
            start = time.perf_counter()
            read()
            _wait(device)
            best = max(best, rows.numel() * 4 / (time.perf_counter() - start))
    return best


def bytes_per_token(target: LanguageModel, context: float) -> float:
    """Bytes that one plain step has to read. `context`: mean tokens in the cache."""
    info, model = target.info, getattr(target, "model", None)
    size = _BYTES[info.dtype]
    cache = 0.0
    if hasattr(model, "kv_heads"):
        cache = 2 * len(model.layers) * model.kv_heads * model.head_dim * context * size
    return info.parameters * size + cache


def roofline(target: LanguageModel, context: float, seconds_per_token: float) -> Roofline:
    """Compare a measured time per token with what reading alone would take."""
    needed, bandwidth = bytes_per_token(target, context), measure_bandwidth(target.device)
    return Roofline(bytes_per_token=needed, bandwidth=bandwidth, fraction=needed / seconds_per_token / bandwidth)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
