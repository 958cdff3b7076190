"""A dynamic tree grown ahead of the host: on a GPU no step waits to be looked at.

`Growing` decides on the host which nodes to expand, so each step would wait for the one before. Here the device expands
the best nodes of every depth as they come, all of its beam, and the host is told at the end: it goes through the same
decisions again and takes what it would have asked for. What it would not have asked for was computed for nothing, which
on a GPU costs less than a wait; texts are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from specdemo.drafters.dynamic_tree import BEAM, Growing
from specdemo.models.cache import KVCache
from specdemo.models.device import to_device
from specdemo.models.eagle import EagleHead
from specdemo.models.tree import ROOT


@dataclass(frozen=True)
class Look:
    """The children of one beam, on the host: ids and probs [beam][children]. best: which of them, counted through, are
    the next beam, the likeliest first."""

    ids: list[list[int]]
    probs: list[list[float]]
    best: list[int]


@torch.inference_mode()
def looks_ahead(head: EagleHead, states: Tensor, cache: KVCache, looks: int, children: int) -> list[Look]:
    """Look at the children of `looks` beams in turn, `children` of each node, the first beam being the text itself,
    whose state is states [1, width]; brought to the host in one transfer. Leaves the expanded nodes in the cache."""
    (length,) = cache.lengths
    text = to_device([length], head.device)
    chances, seen = torch.ones(1, 1, device=head.device), torch.zeros(1, 0, dtype=torch.bool, device=head.device)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for look in range(looks):
        probs, at = head.logits(states).softmax(-1).topk(children)
        ids = head.target_ids(at)
        chances, best = (chances * probs).flatten().topk(min(BEAM, children))
        found.append((ids, probs, best))
        if look + 1 == looks:
            break
        chances = chances[:, None]
        # Who stands behind whom among the expanded nodes: each behind its own ancestors.
        parents = best // children
        seen = torch.cat((seen[parents], torch.eye(len(best), dtype=torch.bool, device=head.device)), dim=1)
        depths = torch.full((len(best),), look, device=head.device)
        place = cache.branching(seen, depths, text, length + seen.shape[1])
        states = head.forward(states[parents], ids.flatten()[best], cache, place=place)
    return _on_host(found)


def _on_host(found: list[tuple[Tensor, Tensor, Tensor]]) -> list[Look]:
    parts = [part for look in found for part in look]
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.numel())
    told = torch.cat([part.flatten().to(torch.float32) for part in parts]).tolist()  # fp32 holds ids up to 2^24
    pieces = iter([told[start:end] for start, end in pairwise(ends)])
    looks = []
    for ids, _, _ in found:
        rows, children = ids.shape
        cut = [slice(row * children, (row + 1) * children) for row in range(rows)]
        ids, probs, best = next(pieces), next(pieces), next(pieces)
        looks.append(Look([list(map(int, ids[row])) for row in cut], [probs[row] for row in cut], list(map(int, best))))
    return looks


def grow(growing: Growing, looks: list[Look]) -> None:
    """Decide over what was looked at as if each look had been asked for."""
    parents, rows = [ROOT], [0]
    for look in looks:
        first, children = len(growing.ids), len(look.ids[0])
        beam = growing.add(parents, [look.ids[row] for row in rows], [look.probs[row] for row in rows])
        place = {node: rows[(node - first) // children] * children + (node - first) % children for node in beam}
        parents = [node for node in beam if place[node] in look.best]  # rounding may rank a tie otherwise
        rows = [look.best.index(place[node]) for node in parents]
        if not parents:
            return
