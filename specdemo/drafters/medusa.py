"""Medusa heads draft a tree of one shape (Cai et al. 2024, 2401.10774)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import torch

from specdemo.drafters.base import Proposal, Stop
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.events import NoDraft
from specdemo.models.device import to_device
from specdemo.models.medusa import MedusaHeads
from specdemo.models.runner import Runner
from specdemo.models.tree import ROOT, Tree

_GUESSED = [0.5 * 0.45**rank for rank in range(10)]
"""Accuracies by rank of a head that nobody measured: the first guess right every second time, each later one rarer."""

_LEAST = 1e-6  # an accuracy of nothing says only that the sample was small
_GUESSED_DECAY = 0.8  # of each such head beside the one before


class Medusa:
    """Fills a sparse tree, chosen once from the heads' accuracies, with each head's best candidates.

    A candidate is chosen by its rank and not drawn, so q is one-hot. A head does not know what its elders proposed:
    all nodes of a depth share one list of candidates.
    """

    longest_context = None

    def __init__(self, heads: MedusaHeads, vocab_size: int, shape: TreeShape) -> None:
        self.heads, self.vocab_size, self.taps = heads, vocab_size, heads.taps
        accuracies = heads.accuracies or guessed(len(heads))
        self.ranks, parents = sparse_tree([ranks[: heads.vocab_size] for ranks in accuracies], shape)
        self.tree = Tree(tuple(parents))

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        """Nothing of its own to read: it looks at the target's last state."""
        self.target = target

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        tree = self.tree.first(next((i for i in range(len(self.tree)) if self.tree.depth(i) >= gamma), len(self.tree)))
        why: NoDraft | None = (
            "no_node_pays" if not len(tree) else "too_early" if not len(self.target.features) else None
        )
        if why or stop():
            return Proposal.none(self.vocab_size, self.heads.device, why)
        best, at = self.heads.logits(self.target.features[-1]).softmax(-1).topk(max(self.ranks) + 1)
        depths, ranks = tree.depths(self.heads.device), to_device(self.ranks[: len(tree)], self.heads.device)
        ids = self.heads.target_ids(at[depths, ranks])
        # The one time that a draft waits for the device: chances for eyes, and to see a NaN.
        probs, known = torch.stack((best[depths, ranks], ids.to(best.dtype))).tolist()
        chances = _chances(probs, tree)
        if any(map(math.isnan, chances)):
            return Proposal.none(self.vocab_size, self.heads.device, "draft_broken", 1)
        return Proposal(ids, None, 1, tree, chances, known=list(map(int, known)))

    def rollback(self, length: int) -> None:
        """Nothing to forget."""


def _chances(probs: list[float], tree: Tree) -> list[float]:
    """The product of the heads' probabilities along the path to each node."""
    chances: list[float] = []
    for prob, parent in zip(probs, tree.parents, strict=True):
        chances.append(prob * (1.0 if parent == ROOT else chances[parent]))
    return chances


def guessed(heads: int) -> list[list[float]]:
    """Accuracies for heads that nobody measured."""
    return [[share * _GUESSED_DECAY**head for share in _GUESSED] for head in range(heads)]


def sparse_tree(accuracies: list[list[float]], shape: TreeShape) -> tuple[list[int], list[int]]:
    """The paper's greedy construction: (rank of each node among its head's candidates, parent of each node).

    A node is reached with the product of the accuracies along its path, if heads err independently. The node that adds
    most is added, then the next, up to the budget, or as far as it pays where `shape.cost` is known; behind a node its
    first child and its next sibling become candidates. Nodes come depth by depth, better siblings first.
    """
    accuracies = [[max(share, _LEAST) for share in ranks] for ranks in accuracies]
    depth = min(shape.depth, len(accuracies))
    found: list[tuple[float, tuple[int, ...]]] = []  # (chance, ranks along the path)
    heap = [(-accuracies[0][0], (0,))] if depth else []
    while heap and len(found) < shape.nodes:
        chance, path = heapq.heappop(heap)
        found.append((-chance, path))
        head, rank = len(path) - 1, path[-1]
        if rank + 1 < len(accuracies[head]):
            sibling = chance / accuracies[head][rank] * accuracies[head][rank + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1)))
        if len(path) < depth:
            heapq.heappush(heap, (chance * accuracies[head + 1][0], (*path, 0)))
    kept = found[: _worth([chance for chance, _ in found], shape.cost)]
    paths = sorted((path for _, path in kept), key=lambda path: (len(path), path))
    place = {path: node for node, path in enumerate(paths)} | {(): ROOT}
    return [path[-1] for path in paths], [place[path[:-1]] for path in paths]


def _worth(chances: list[float], cost: Callable[[int, int], float] | None) -> int:
    """How many of the nodes, best first, give the most tokens for their cost."""
    if cost is None:
        return len(chances)
    expected = [1 + sum(chances[:n]) for n in range(len(chances) + 1)]
    return max(range(len(expected)), key=lambda n: expected[n] / cost(1 if n else 0, n))
