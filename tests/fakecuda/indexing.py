"""`tensor[key]` as Python writes it, in ATen's operators: below Python, torch would ask for a real device."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def read(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    view, indices = _split(tensor, key)
    return view if all(index is None for index in indices) else aten.index.Tensor(view, indices)


def write(tensor: torch.Tensor, key: Any, value: Any) -> None:
    view, indices = _split(tensor, key)
    if any(index is not None for index in indices):
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        aten.index_put_.default(view, indices, value)
    elif not isinstance(value, torch.Tensor):
        view.fill_(value)
    elif value.dim() == 0 and value.device.type == "cpu":
        view.fill_(value.item())
    else:
        view.copy_(value.expand(view.shape))


def _split(tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A view by the basic parts of a key, and index tensors for its other parts, None for dimensions left alone."""
    view, dim, indices = tensor, 0, []
    for part in _without_ellipsis(tensor, list(key) if isinstance(key, tuple) else [key]):
        if part is None:
            view = aten.unsqueeze.default(view, dim)
        elif isinstance(part, slice):
            if part != slice(None):
                view = aten.slice.Tensor(view, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, (torch.Tensor, list)) and not _is_number(part):
            indices += [None] * (dim - len(indices)) + [torch.tensor(part) if isinstance(part, list) else part]
            dim += part.dim() - 1 if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 0
        else:
            view = aten.select.int(view, dim, int(part))
            continue
        dim += 1
    return view, indices


def _is_number(part: torch.Tensor | list) -> bool:
    """A tensor of no dimensions selects, as torch does it: by its value, so the host waits for it."""
    return isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype != torch.bool


def _without_ellipsis(tensor: torch.Tensor, parts: list[Any]) -> list[Any]:
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is None:
        return parts
    others = [part for part in parts if part is not None and part is not Ellipsis]
    used = sum(part.dim() if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 1 for part in others)
    return [*parts[:at], *[slice(None)] * (tensor.dim() - used), *parts[at + 1 :]]
