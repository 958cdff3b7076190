"""A tree of drafted tokens as a target pass sees it: who is behind whom.

A chain is the tree in which every node's parent is the node before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROOT = -1
"""Parent of the nodes that stand directly behind the text."""


@dataclass(frozen=True)
class Tree:
    """`parents` [k]: index of each node's parent, ROOT for the first ones; a parent comes before its children."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        assert all(ROOT <= parent < i for i, parent in enumerate(self.parents)), self.parents

    def __len__(self) -> int:
        return len(self.parents)

    def depths(self, device: torch.device) -> Tensor:
        """Distance of each node from the text, [k]: its position in the text, counted from the first free one."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return torch.tensor(depths, device=device)

    def mask(self, device: torch.device) -> Tensor:
        """Which nodes each node sees, itself and its ancestors, [k, k] bool."""
        seen = torch.eye(len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[node] |= seen[parent]
        return seen.to(device)
