"""Linear layers and norms in the form the processor likes best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.kernels import KERNELS, SHORT, Linear, fastest, plain


def linear(weight: Tensor, bias: Tensor | None = None, coarse: bool = False) -> Linear:
    """A function `x [..., in] -> [..., out]` computing `x @ weight.T + bias`, as fast as this device allows.

    coarse: float32 may be multiplied as bfloat16 where that is faster. For what is verified anyway: a drafter's layers.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return plain(weight, bias)
    way = fastest(*weight.shape, coarse)
    layer = KERNELS[way.kernel](weight, bias)
    return _stretched(layer, way.rows) if way.rows else layer


def _stretched(layer: Linear, instead: dict[int, int]) -> Linear:
    """The layer, with rows of zeros added to products that are slower than longer ones, see `kernels.Way`."""

    def stretched(x: Tensor) -> Tensor:
        count = x.numel() // x.shape[-1]
        wanted = instead.get(count, count) if count <= SHORT else count
        if wanted == count:
            return layer(x)
        rows = F.pad(x.reshape(count, -1), (0, 0, 0, wanted - count))
        return layer(rows)[:count].view(*x.shape[:-1], -1)

    return stretched


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
