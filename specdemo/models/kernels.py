"""Which way to multiply by a weight is fastest on this processor: measured for every shape, once for each machine.

Decoding multiplies few rows (1 for a plain step, a handful to verify a draft), and how long that takes says less about
the arithmetic than about the library: the same weight can be twice as fast once oneDNN has reordered it, and on some
processors a product of three rows takes longer than one of five. No rule predicts that, so every way is tried.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor

from specdemo.models.kept import keep, recall

Linear = Callable[[Tensor], Tensor]
"""x [..., in] -> [..., out]."""

SHORT = 17
"""Rows up to which ways are compared: the longest chain of drafts, and the token before it."""

_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, SHORT)
_USUAL_ROWS = 8  # a way is chosen for passes up to this long; longer ones are rare
_COLD = 1 << 26  # bytes of weights that are read in turn, so that none is found in the processor's cache
_MOST_COPIES = 24
_REPEATS = 7
_GAIN = 0.85  # a longer product has to take less than this share of a shorter one's time to stand in for it
_WORTH_ASKING = 1 << 15  # elements; what is smaller costs nothing either way
_ROWS_HINT = 8  # a reordered weight is laid out for about this many rows


class Way(BaseModel):
    """How to multiply by a weight: the kernel's name, and for how many rows others are multiplied ({3: 5}: a product of
    three rows is slower than one of five, so two rows of zeros join it)."""

    kernel: str
    rows: dict[int, int] = {}


def plain(weight: Tensor, bias: Tensor | None) -> Linear:
    return functools.partial(F.linear, weight=weight, bias=bias)


def packed(weight: Tensor, bias: Tensor | None) -> Linear:
    """oneDNN's product with a reordered weight. torch keeps the operators private: they are named here alone."""
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    pointwise = torch.ops.mkldnn._linear_pointwise
    return lambda x: pointwise(x, reordered, bias, "none", [], "")


def coarse(weight: Tensor, bias: Tensor | None) -> Linear:
    """In bfloat16: half the bytes, and fast where a processor multiplies it (AMX, AVX512-BF16)."""
    multiply = packed(weight.bfloat16(), None)

    def layer(x: Tensor) -> Tensor:
        product = multiply(x.bfloat16()).float()
        return product if bias is None else product + bias

    return layer


KERNELS = {"plain": plain, "packed": packed, "coarse": coarse}
_TOLERANCE = {"packed": 1e-3, "coarse": 0.1}


@functools.cache
def works(kernel: str) -> bool:
    """Whether this torch has a kernel's operators, this processor takes them, and they give what `F.linear` gives."""
    if kernel == "plain":
        return True
    weight, x = torch.randn(64, 32, generator=_seeded()), torch.randn(3, 32, generator=_seeded())
    try:
        return torch.allclose(KERNELS[kernel](weight, None)(x), F.linear(x, weight), atol=_TOLERANCE[kernel])
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


@functools.cache
def fastest(out_features: int, in_features: int, coarse: bool) -> Way:
    """The way for a float32 weight [out, in] on this processor; coarse: bfloat16 will do."""
    names = [name for name in KERNELS if works(name) and (coarse or name != "coarse")]
    if out_features * in_features < _WORTH_ASKING or len(names) == 1:
        return Way(kernel="plain")
    name = f"linear {out_features}x{in_features} {' '.join(names)}"
    known = recall(name)
    if known is not None:
        return Way.model_validate(known)
    way = choose(measure(out_features, in_features, names))
    keep(name, way.model_dump())
    return way


def choose(seconds: dict[str, dict[int, float]]) -> Way:
    """The best of some kernels, from the seconds of each for several numbers of rows (ascending).

    Every number of rows counts the same, by how much slower than the best a kernel is there.
    """
    usual = [rows for rows in next(iter(seconds.values())) if rows <= _USUAL_ROWS]
    best = {rows: min(times[rows] for times in seconds.values()) for rows in usual}
    kernel = min(seconds, key=lambda name: sum(seconds[name][rows] / best[rows] for rows in usual))
    times, instead = seconds[kernel], {}
    for rows in range(1, max(times) + 1):
        own = np.interp(rows, list(times), list(times.values()))
        longer = min((known for known in times if known >= rows), key=times.__getitem__)
        if times[longer] < _GAIN * own:
            instead[rows] = longer
    return Way(kernel=kernel, rows=instead)


@torch.inference_mode()
def measure(out_features: int, in_features: int, names: list[str]) -> dict[str, dict[int, float]]:
    """Seconds of each kernel for each of some numbers of rows: the least of a few, taken in turn.

    Whatever else the machine does makes a product slower and never faster.
    """
    size = 4 * out_features * in_features
    copies = max(1, min(_MOST_COPIES, _COLD // size))
    weight = torch.randn(out_features, in_features, generator=_seeded())
    layers = {name: _in_turn([KERNELS[name](weight.clone(), None) for _ in range(copies)]) for name in names}
    seconds = {name: dict.fromkeys(_ROWS, float("inf")) for name in names}
    for repeat in range(_REPEATS):
        for rows in _ROWS:
            x = torch.randn(rows, in_features)
            for name in names:
                layer = next(layers[name])
                start = time.perf_counter()
                layer(x)
                taken = time.perf_counter() - start
                if repeat:  # the first one prepares the kernel
                    seconds[name][rows] = min(seconds[name][rows], taken)
    return seconds


def _in_turn(layers: list[Linear]) -> Iterator[Linear]:
    while True:
        yield from layers


def _seeded() -> torch.Generator:
    """Random numbers of its own: nobody's seed moves because a weight was measured."""
    return torch.Generator().manual_seed(0)
