"""Tensors among an operator's operands and results, which are lists, tuples and dicts of anything.

torch.utils._pytree does the same for every kind of container, and takes most of the time if it is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def tensors_in(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for part in tree for tensor in tensors_in(part)]


def mapped(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """The same with every tensor changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(change, part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(change, part) for part in tree])
    return tree
