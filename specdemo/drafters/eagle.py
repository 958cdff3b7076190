"""An EAGLE head drafts a dynamic tree (Li et al. 2024, 2401.15077 and 2406.16858; 2025, 2503.01840)."""

from __future__ import annotations

import math

from torch import Tensor

from specdemo.drafters.ahead import grow, looks_ahead
from specdemo.drafters.base import Proposal, Stop
from specdemo.drafters.dynamic_tree import BEAM, Growing, TreeShape
from specdemo.drafters.rate import Rate
from specdemo.models.cache import KVCache
from specdemo.models.device import to_device
from specdemo.models.eagle import EagleHead
from specdemo.models.runner import Runner, chunks
from specdemo.models.tree import ROOT
from specdemo.settings import MAX_DEPTH

_SLOTS = BEAM * MAX_DEPTH  # for the nodes of one round's draft, forgotten when it is made


class Eagle:
    """Continues the target's states, which lie in the target's own cache, and keeps keys and values of those only.

    A node is chosen by its probability and not drawn, so q is one-hot.
    """

    longest_context = None

    def __init__(self, head: EagleHead, vocab_size: int, shape: TreeShape) -> None:
        self.head, self.vocab_size, self.shape, self.taps = head, vocab_size, shape, head.taps
        self.rate = Rate()
        self._broken = False  # whether it has computed a probability that is none
        self._reached = shape.depth  # steps that the last draft went
        self._drafted: tuple[int, int, int] | None = None  # behind how many tokens, in how many steps, how many nodes

    def prefill(self, prompt: list[int], target: Runner, stop: Stop) -> None:
        self.target, self.cache = target, KVCache(self.head, target.capacity + _SLOTS)
        # The state behind the last token but one is left for the first draft, which starts from it.
        for chunk in chunks(prompt[:-2]):
            if stop():
                return
            self._read(prompt, self._length + len(chunk))

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        growing, text = Growing(self.shape, self.rate()), len(context) - 1
        if text < 1 or stop():
            return Proposal.none(self.vocab_size, self.head.device, "too_early" if text < 1 else None)
        state = self._read(context, text)[-1:]
        looks = min(gamma, self.shape.depth)
        if self.head.device.type == "cuda":
            self._grow_ahead(growing, state, looks)
        else:
            self._grow(growing, state, looks, stop)
        self.cache.lengths = [text]
        if self._broken:
            return Proposal.none(self.vocab_size, self.head.device, "draft_broken", growing.steps + 1)
        nodes = growing.rerank()
        self._drafted = len(context), growing.steps, len(nodes)
        if not nodes:
            return Proposal.none(self.vocab_size, self.head.device, "no_node_pays", growing.steps)
        chances, known = [growing.chances[node] for node in nodes], [growing.ids[node] for node in nodes]
        tree, ids = growing.tree_of(nodes), to_device(known, self.head.device)
        return Proposal(ids, None, growing.steps, tree, chances, known=known)

    def rollback(self, length: int) -> None:
        """Nothing to forget, since the cache holds what came of the target's states of kept tokens; but to learn."""
        if self._drafted is not None and self.shape.cost is not None:
            before, steps, nodes = self._drafted
            self.rate.add(length - before + 1, self.shape.cost(steps, nodes))
        self._drafted = None

    @property
    def _length(self) -> int:
        (length,) = self.cache.lengths
        return length

    def _read(self, context: list[int], end: int) -> Tensor:
        """Take in the target's states up to token `end`; the states behind the new ones."""
        start = self._length
        ids = to_device(context[start + 1 : end + 1], self.head.device)
        return self.head.forward(self.head.states(self.target.features[start:end]), ids, self.cache)

    def _grow(self, growing: Growing, state: Tensor, looks: int, stop: Stop) -> None:
        """Look and expand in turn, from the state [1, width] behind the text."""
        states, expanded = state, []  # behind each node that is expanded next
        parents, beam = [ROOT], self._children(growing, [ROOT], states)
        while beam and growing.steps < looks:
            if stop():
                break
            # Nodes expanded at earlier depths are in the cache; these join them, each behind its own ancestors.
            expanded += beam
            tree = growing.tree_of(expanded)
            before = states[[parents.index(growing.parents[node]) for node in beam]]
            states = self.head.forward(before, self._ids(growing, beam), self.cache, tree)
            parents, beam = beam, self._children(growing, beam, states)

    def _grow_ahead(self, growing: Growing, state: Tensor, looks: int) -> None:
        """The same without waiting in between. A tree of live size reaches one step further than it last did, at
        most: how far it pays is known only when it has been made."""
        if self.shape.cost is not None:
            looks = min(looks, self._reached + 1)
        found = looks_ahead(self.head, state, self.cache, looks, self._seen_of_each)
        self._broken = any(math.isnan(row[0]) for look in found for row in look.probs)
        if not self._broken:
            grow(growing, found)
            self._reached, growing.steps = growing.steps, looks

    @property
    def _seen_of_each(self) -> int:
        """Children of a node that are looked at."""
        known = self.vocab_size if self.head.vocab_ids is None else len(self.head.vocab_ids)
        return min(BEAM, self.shape.nodes, known)

    def _children(self, growing: Growing, parents: list[int], states: Tensor) -> list[int]:
        """See the children of nodes, whose states are [k, width]; those to expand next."""
        probs, at = self.head.logits(states).softmax(-1).topk(self._seen_of_each)
        shares, ids = probs.tolist(), self.head.target_ids(at).tolist()
        if any(math.isnan(row[0]) for row in shares):
            self._broken = True
            return []
        return growing.add(parents, ids, shares)

    def _ids(self, growing: Growing, nodes: list[int]) -> Tensor:
        return to_device([growing.ids[node] for node in nodes], self.head.device)
