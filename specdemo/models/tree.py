"""A tree of drafted tokens as a target pass sees it: who is behind whom.

A chain is the tree in which every node's parent is the node before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specdemo.models.device import to_device

ROOT = -1
"""Parent of the nodes that stand directly behind the text."""


@dataclass(frozen=True)
class Tree:
    """`parents` [k]: index of each node's parent, ROOT for the first ones; a parent comes before its children."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(ROOT <= parent < i for i, parent in enumerate(self.parents)):
            raise ValueError(f"{self.parents} are no parents of a tree: each stands before its children")

    def __len__(self) -> int:
        return len(self.parents)

    def children(self, node: int) -> list[int]:
        """The nodes directly behind one (or behind the text, for ROOT), in the order in which they were drafted."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def behind(self, tokens: int) -> Tree:
        """This tree with a chain of `tokens` tokens before it: text that is not in the cache yet joins the pass."""
        return Tree((*range(ROOT, tokens - 1), *(parent + tokens for parent in self.parents)))

    def first(self, n: int) -> Tree:
        """Its first n nodes, which are a tree too: parents come first."""
        return Tree(self.parents[:n])

    def path(self, node: int) -> list[int]:
        """The node's ancestors and itself, from the text outwards."""
        return ([] if self.parents[node] == ROOT else self.path(self.parents[node])) + [node]

    def depth(self, node: int) -> int:
        """The node's distance from the first free position of the text."""
        return self._depths[node]

    def depths(self, device: torch.device) -> Tensor:
        """Distance of every node from the first free position, [k]."""
        return to_device(self._depths, device)

    @cached_property
    def _depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    def mask(self, device: torch.device) -> Tensor:
        """Which nodes each node sees, itself and its ancestors, [k, k] bool."""
        seen = np.eye(len(self), dtype=bool)  # many tiny steps, which numpy takes ten times faster than torch
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[node] |= seen[parent]
        return to_device(torch.from_numpy(seen), device)

    def judged(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """By what each node is judged: the row of logits that predicts it (0 behind the text, i + 1 behind node i),
        [k], and which elder siblings were refused when it is tested, [k, k] bool."""
        parents = np.array(self.parents)
        elders = np.tri(len(self), k=-1, dtype=bool) & (parents[:, None] == parents)
        both = to_device(torch.from_numpy(np.column_stack((parents + 1, elders))), device)
        return both[:, 0], both[:, 1:].bool()
