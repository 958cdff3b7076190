"""Which continuations are worth verifying: EAGLE-2's dynamic tree (Li et al. 2024, 2406.16858).

A head's probabilities tell well how likely the target is to accept, and a node can only be accepted with all nodes
before it. So the tree grows where the product along the path is largest: *expand* the few best nodes of each depth,
then *rerank* everything that was seen and keep the best. A child's product is at most its parent's, so what is kept is
a tree again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from specdemo.models.tree import ROOT, Tree

BEAM = 8
"""Nodes expanded at a depth, and children seen of each. EAGLE-2 takes 10; a narrow tree suits small budgets."""

_FIRST = 0.65  # probability that a head usually gives to a node's first child


@dataclass(frozen=True)
class TreeShape:
    """How large a tree may grow. depth: tokens from the text to the furthest node. nodes: the budget of a round.

    cost(steps, nodes): what a round costs in target steps, where the budget is to be spent only as far as it pays.
    """

    depth: int = 6
    nodes: int = 16
    cost: Callable[[int, int], float] | None = None


@dataclass
class Growing:
    """A tree while it grows; its nodes are numbered in the order in which they were seen.

    rate: tokens per target step that time is worth, see `Rate`; of use where costs are known. ids, parents, chances: of
    each node, the last being the product of the drafter's probabilities from the text on.
    """

    shape: TreeShape
    rate: float = 1.0
    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    steps: int = 0

    def add(self, parents: list[int], ids: list[list[int]], probs: list[list[float]]) -> list[int]:
        """Add the children of nodes that were expanded together; the best of the new nodes, worth expanding next."""
        first = len(self.ids)
        self.steps += 1
        for parent, tokens, shares in zip(parents, ids, probs, strict=True):
            before = 1.0 if parent == ROOT else self.chances[parent]
            for token, share in zip(tokens, shares, strict=True):
                self.ids.append(token)
                self.parents.append(parent)
                self.chances.append(before * share)
        new = sorted(range(first, len(self.ids)), key=lambda node: -self.chances[node])
        return self._worth_expanding(new[: min(BEAM, self.shape.nodes)])

    def _worth_expanding(self, nodes: list[int]) -> list[int]:
        """Those of some nodes whose children can still enter the tree, if another step pays at all."""
        ranked = self._ranked(self.chances)
        floor = ranked[-1] if len(ranked) == self.shape.nodes else 0.0
        nodes = [node for node in nodes if self.chances[node] > floor]
        if self.shape.cost is None:
            return nodes
        children = [_FIRST * self.chances[node] for node in nodes]
        _, now = self._best(self.chances, self.steps)
        _, then = self._best([*self.chances, *children], self.steps + 1)
        return nodes if then > now else []

    def _best(self, chances: list[float], steps: int) -> tuple[int, float]:
        """How many nodes to verify, and what that gives: expected tokens less what its time would give elsewhere.

        Every size is looked at: where a pass over two tokens costs nearly what one over five does, the next node alone
        never pays and four of them do. Without costs all in the budget are verified.
        """
        ranked, cost = self._ranked(chances), self.shape.cost
        if cost is None:
            return len(ranked), sum(ranked)
        expected = itertools.accumulate(ranked, initial=0.0)
        worth = [tokens - self.rate * cost(steps, n) for n, tokens in enumerate(expected)]
        best = max(range(len(worth)), key=worth.__getitem__)
        return best, worth[best]

    def _ranked(self, chances: list[float]) -> list[float]:
        """The best chances, as many as the budget has nodes."""
        return sorted(chances, reverse=True)[: self.shape.nodes]

    def rerank(self) -> list[int]:
        """The nodes to verify, parents before children and better siblings before worse ones."""
        kept, _ = self._best(self.chances, self.steps)
        ranked = sorted(range(len(self.ids)), key=lambda node: -self.chances[node])  # stable: parents stay first
        return sorted(ranked[:kept], key=lambda node: (self._depth(node), -self.chances[node]))

    def tree_of(self, nodes: list[int]) -> Tree:
        """Some of the nodes, closed under parents and parents first, as a tree of their own."""
        place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        return Tree(tuple(place[self.parents[node]] for node in nodes))

    def _depth(self, node: int) -> int:
        return 0 if self.parents[node] == ROOT else self._depth(self.parents[node]) + 1
