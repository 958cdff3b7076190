"""How fast plain decoding could be at most here: every token reads every weight once, so memory sets the pace."""

from __future__ import annotations

import torch
from pydantic import BaseModel

from specdemo.models.device import DTYPES, enter, seconds_of
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.runner import LanguageModel

_BUFFER = 1 << 30  # bytes read at a time: more than any cache holds
_REPEATS = 5


class Roofline(BaseModel):
    """bytes_per_token: weights, and keys and values at the mean context. bandwidth: bytes a second that this machine
    reads, measured. fraction: of that bandwidth, what the baseline's decoding reached."""

    bytes_per_token: float
    bandwidth: float
    fraction: float

    def sentence(self) -> str:
        return (
            f"Roofline: a token reads {self.bytes_per_token / 1e6:.0f} MB; this machine reads "
            f"{self.bandwidth / 1e9:.1f} GB/s; the baseline reached {self.fraction:.0%} of that."
        )


def measure_bandwidth(device: torch.device, size: int = _BUFFER) -> float:
    """Bytes a second at which weights can be read: the best of a few sums and matrix-vector products over a buffer
    that no cache holds."""
    enter(device)
    rows = torch.ones(size // 4 // 4096, 4096, device=device)
    vector = torch.ones(4096, device=device)
    best = 0.0
    for read in (rows.sum, lambda: rows @ vector):
        for _ in range(_REPEATS):
            best = max(best, rows.numel() * 4 / seconds_of(read, device))
    return best


def bytes_per_token(target: LanguageModel, context: float) -> float:
    """Bytes that one plain step has to read: every weight but an embedding that is only looked up, and the cache.

    context: mean tokens in the cache. A model that runs through transformers is counted without its cache.
    """
    size = DTYPES[target.info.dtype].itemsize
    if not isinstance(target, LeanLanguageModel):
        return target.info.parameters * size
    model = target.model
    looked_up = 0 if model.is_tied else model.embedding.numel()
    cache = 2 * model.depth * model.heads.shared * model.heads.dim * context
    return (target.info.parameters - looked_up + cache) * size


def roofline(target: LanguageModel, context: float, seconds_per_token: float) -> Roofline:
    """Compare a measured time per token with what reading alone would take."""
    needed, bandwidth = bytes_per_token(target, context), measure_bandwidth(target.device)
    return Roofline(bytes_per_token=needed, bandwidth=bandwidth, fraction=needed / seconds_per_token / bandwidth)
