"""Linear layers and norms in the form the processor likes best.

oneDNN multiplies small batches (1 to 16 rows, which is all that decoding ever does) faster when the weight has
been reordered once, at load time. torch keeps that reordering in private operators, so they are named here and
nowhere else, and everything falls back to `torch.nn.functional.linear` where they are missing or refuse.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]

_ROWS_HINT = 4  # the layout is tuned for about this many rows: a verification pass of a usual gamma

WORTH_PACKING = 1 << 20
"""Elements from which a reordered weight pays: below, the operator's own overhead (20 us) outweighs it."""


@functools.cache
def can_prepack() -> bool:
    """Whether this torch has the oneDNN operators and they give what `F.linear` gives."""
    try:
        weight, x = torch.randn(64, 32), torch.randn(3, 32)
        return torch.allclose(_prepacked(weight, None)(x), F.linear(x, weight), atol=1e-3)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


@functools.cache
def multiplies_coarsely() -> bool:
    """Whether this processor is faster at bfloat16 than at float32 (AMX, AVX512-BF16).

    Measured, not looked up: a processor may accept bfloat16 and emulate it several times slower.
    """
    weight, x = torch.randn(4096, 512), torch.randn(_ROWS_HINT, 512)
    try:
        layers = (_prepacked(weight, None), _coarse(weight, None))
    except RuntimeError:  # oneDNN refuses bfloat16 where only AVX2 is there
        return False
    seconds = []
    for layer in layers:
        layer(x)
        start = time.perf_counter()
        for _ in range(5):
            layer(x)
        seconds.append(time.perf_counter() - start)
    return seconds[1] < 0.8 * seconds[0]


def linear(weight: Tensor, bias: Tensor | None = None, coarse: bool = False) -> Linear:
    """A function `x [..., in] -> [..., out]` computing `x @ weight.T + bias`, as fast as this device allows.

    coarse: float32 may be multiplied as bfloat16 where that is faster. For what is verified anyway: a drafter's layers.
    """
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if on_cpu and weight.numel() >= WORTH_PACKING and can_prepack():
        return (_coarse if coarse and multiplies_coarsely() else _prepacked)(weight, bias)
    return functools.partial(F.linear, weight=weight, bias=bias)


def _prepacked(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    pointwise = torch.ops.mkldnn._linear_pointwise
    return lambda x: pointwise(x, packed, bias, "none", [], "")


def _coarse(weight: Tensor, bias: Tensor | None) -> Linear:
    multiply = _prepacked(weight.bfloat16(), None)

    def layer(x: Tensor) -> Tensor:
        product = multiply(x.bfloat16()).float()
        return product if bias is None else product + bias

    return layer


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension (Zhang and Sennrich 2019, 1910.07467).

    torch's own is one kernel on a GPU, but ten small ones on a CPU, where decoding counts calls as much as arithmetic:
    with the weight scaled by sqrt(n) the same is x * weight / hypot(norm(x), sqrt(n eps)), four calls.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        n = weight.numel()
        self._few_calls = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._weight = weight * n**0.5 if self._few_calls else weight
        self._floor = torch.tensor((n * eps) ** 0.5)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._few_calls:
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x * self._weight).div_(torch.hypot(norm, self._floor))
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
