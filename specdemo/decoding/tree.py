"""Accepting along a tree (SpecInfer, Miao et al. 2024, 2305.09781; without replacement: Jeon et al. 2024, 2402.14160).

The walk begins behind the text. At every node its children are tested in order, each against what its elder siblings
left of the target's distribution: accept x with min(1, r(x) / q(x)), else r <- norm(max(0, r - q)). The first that
passes is entered; where none does, the token is drawn from what is left. One rule serves every way to choose children,
because each has its own q (see `Proposal`): shared by draws with replacement, cut and renormalised without, one-hot for
children that were picked (Medusa, EAGLE-2), for which it says: accept x with r(x), else strike it out. A chain is the
tree of width one, and this rule is then that of `sampling.verify`, which decides a chain without waiting in between.

Whoever is tested, all elder siblings have been refused, so what they left does not depend on the walk. `odds` computes
every node's chance at once, where the logits lie; `walk` is a few comparisons on the host; and `leftover` is what the
target's own token is drawn from. A round waits for the device twice: for the chances, and for that token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.models.device import to_device
from specdemo.models.tree import ROOT, Tree
from specdemo.sampling import residual


@dataclass(frozen=True)
class Odds:
    """Of each of n nodes, on the device: p [n], the target's probability of it, and accept [n], the chance that it is
    accepted once it is tested. left [n, vocab]: what is left where its test fails; None where nodes were chosen, which
    leave p without them. thresholds [n]: by typical acceptance, what p had to exceed."""

    p: Tensor
    accept: Tensor
    left: Tensor | None = None
    thresholds: Tensor | None = None


def odds(p: Tensor, q: Tensor | None, ids: Tensor, tree: Tree) -> Odds:
    """The chances of a tree of n nodes. Where p or q is NaN (see `sampling.probabilities`) so are they.

    Args:
        p: target distributions [n + 1, vocab]; row 0 behind the text, row i + 1 behind node i.
        q: what each node was drawn from, [n, vocab], given its elder siblings; None where all were chosen (one-hot).
        ids: the nodes' tokens [n].
    """
    rows, elders = tree.judged(p.device)
    of_target = p[rows, ids]
    if q is None:
        # Striking out the elders leaves 1 less what they had. Where they had everything one of them was accepted for
        # certain, so whatever rounding leaves there is never asked for; only it must not be nothing.
        rest = 1 - (elders * of_target).sum(-1)
        return Odds(of_target, (of_target / rest.clamp_min(torch.finfo(p.dtype).tiny)).clamp_max(1))
    before: list[Tensor] = []
    left: list[Tensor] = []
    for node, parent in enumerate(tree.parents):
        elder = [sibling for sibling in tree.children(parent) if sibling < node][-1:]
        before.append(left[elder[0]] if elder else p[parent + 1])
        left.append(residual(before[node], q[node]))
    at = ids[:, None]
    accept = torch.stack(before).gather(-1, at) / q.gather(-1, at)
    return Odds(of_target, accept[:, 0].clamp_max(1), torch.stack(left))


EPSILON, DELTA = 0.09, 0.3
"""Medusa's own constants: what is likelier than EPSILON is typical, and so is less where p is spread widely."""


def typical_odds(p: Tensor, ids: Tensor, tree: Tree) -> Odds:
    """Medusa's typical acceptance (Cai et al. 2024, 2401.10774, section 2.3.1), arguments as in `odds`. NOT exact.

    A node x is accepted if p(x) > min(EPSILON, DELTA exp(-H(p))) behind its parent, whatever else the target might have
    said. Texts are plausible and no longer drawn from the target's distribution (but for temperature 0, where only the
    first choice is typical).
    """
    rows, _ = tree.judged(p.device)
    entropy = torch.special.entr(p).sum(-1)
    thresholds = (DELTA * (-entropy).exp()).clamp_max(EPSILON)[rows]
    of_target = p[rows, ids]
    return Odds(of_target, (of_target > thresholds).to(p.dtype), thresholds=thresholds)


def walk(tree: Tree, accept: list[float], u: list[float]) -> tuple[list[int], list[int]]:
    """The accepted nodes, from the text outwards, and all that were tested. accept, u: chances and uniforms [n]; a NaN
    passes no test."""
    path: list[int] = []
    tested: list[int] = []
    node = ROOT
    while True:
        for child in tree.children(node):
            tested.append(child)
            if u[child] < accept[child]:
                path.append(child)
                node = child
                break
        else:
            return path, tested


def longest_walk(tree: Tree, accept: list[float]) -> tuple[list[int], list[int]]:
    """By typical acceptance: the longest path of accepted nodes, the earliest of several, and all that were tested."""
    paths = map(tree.path, range(len(tree)))
    path = max((path for path in paths if all(accept[i] for i in path)), key=len, default=[])
    refused = [i for node in (ROOT, *path) for i in tree.children(node) if not accept[i]]
    return path, path + refused


def leftover(p: Tensor, found: Odds, ids: Tensor, tree: Tree, path: list[int]) -> Tensor:
    """What the target's own token behind a path is drawn from, [vocab]. By typical acceptance that is p itself."""
    last = path[-1] if path else ROOT
    here, refused = p[last + 1], tree.children(last)
    if not refused or found.thresholds is not None:
        return here
    if found.left is not None:
        return found.left[refused[-1]]
    struck = here.index_fill(0, ids[to_device(refused, p.device)], 0)
    total = struck.sum()
    return torch.where(total > 0, struck / total, here)
