"""Operators that are one kernel on a GPU and several on a CPU, and operators that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from tests.fakecuda.machine import machine
from tests.fakecuda.tensors import CudaTensor, common_device, execute, index_of

aten = torch.ops.aten

_FACTORIES = {
    "empty": ("memory_format",),
    "empty_strided": ("default",),
    "zeros": ("default",),
    "ones": ("default",),
    "full": ("default",),
    "arange": ("default", "start", "start_step"),
    "linspace": ("default",),
    "rand": ("default",),
    "randn": ("default",),
    "randint": ("default", "low"),
    "scalar_tensor": ("default",),
    "eye": ("default",),
}
_HALF = (torch.float16, torch.bfloat16)


class Kernel:
    """A function on the CPU's tensors that counts, and is recorded, as one operator."""

    def __init__(self, name: str, compute: Callable[..., torch.Tensor]) -> None:
        self._schema = SimpleNamespace(name=f"fakecuda::{name}", arguments=[], returns=[None])
        self._compute = compute

    def __call__(self, *args: Any) -> torch.Tensor:
        return self._compute(*args).clone()


_attend = Kernel("attention", lambda q, k, v, bias, causal, scale: F_attention(q, k, v, bias, 0.0, causal, scale=scale))
_normalise = Kernel("rms_norm", lambda x, shape, weight, eps: F_rms_norm(x, shape, weight, eps))
F_attention, F_rms_norm = F.scaled_dot_product_attention, F.rms_norm


def fuse() -> None:
    """Let torch.nn.functional run attention and RMSNorm as CUDA does."""
    F.scaled_dot_product_attention, F.rms_norm = attention, rms_norm


def attention_backend(query: torch.Tensor, key: torch.Tensor, masked: bool) -> str:
    """The backend that torch 2.13 chooses (sdp_utils.cpp, select_sdp_backend): cudnn, flash, efficient or math.

    On Hopper and Blackwell cuDNN is preferred; it and flash attention are for half precision. flash takes no mask.
    """
    allowed, major, dim = torch.backends.cuda, machine.capability[0], query.shape[-1]
    half, modern = query.dtype in _HALF, major >= 8
    fits_cudnn = half and modern and dim % 8 == 0 and dim <= 128 and key.shape[-2] > 1
    if fits_cudnn and major in (9, 10) and allowed.cudnn_sdp_enabled():
        return "cudnn"
    if half and modern and not masked and dim <= 256 and allowed.flash_sdp_enabled():
        return "flash"
    has_dtype = query.dtype in ((*_HALF, torch.float32) if modern else (torch.float16, torch.float32))
    if has_dtype and dim % (8 if half else 4) == 0 and allowed.mem_efficient_sdp_enabled():
        return "efficient"
    return "math"


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention with the launches that a fused backend needs: its own, and those for a mask."""
    if not isinstance(query, CudaTensor):
        return F_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    index = common_device("attention", [t for t in (query, key, value, attn_mask) if t is not None])
    backend = attention_backend(query, key, attn_mask is not None)
    machine.counts.attention[backend, tuple(query.shape), tuple(key.shape), attn_mask is not None] += 1
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        nothing = torch.zeros((), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, nothing, torch.full_like(nothing, -torch.inf))
    if backend == "math":
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[
            0
        ]
    if attn_mask is not None and backend == "efficient" and attn_mask.shape[-1] % 8:  # it reads aligned rows
        attn_mask = F.pad(attn_mask, (0, -attn_mask.shape[-1] % 8))[..., : attn_mask.shape[-1]]
    return execute(_attend, (query, key, value, attn_mask, is_causal, scale), {}, index)


def rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    if not isinstance(input, CudaTensor):
        return F_rms_norm(input, normalized_shape, weight, eps)
    index = common_device("rms_norm", [t for t in (input, weight) if t is not None])
    return execute(_normalise, (input, list(normalized_shape), weight, eps), {}, index)


def register_factories() -> torch.library.Library:
    """Kernels of the CUDA key for operators without tensors among their operands, good in every thread while the
    library lives."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, overloads in _FACTORIES.items():
        for overload in overloads:
            qualified = name if overload == "default" else f"{name}.{overload}"
            library.impl(qualified, _factory(getattr(getattr(aten, name), overload)))
    return library


def _factory(operator: Any) -> Callable[..., torch.Tensor]:
    def make(*args: Any, device: Any = None, pin_memory: object = None, **kwargs: Any) -> torch.Tensor:
        return execute(operator, args, kwargs, index_of(device or "cuda"))

    return make
