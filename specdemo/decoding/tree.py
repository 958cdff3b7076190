"""Accepting along a tree (SpecInfer, Miao et al. 2024, 2305.09781; without replacement: Jeon et al. 2024, 2402.14160).

The walk begins behind the text. At every node its children are tested in order, each against what its elder siblings
left of the target's distribution: accept x with min(1, r(x) / q(x)), else r <- norm(max(0, r - q)). The first that
passes is entered; where none does, the token is drawn from what is left. One rule serves every way to choose children,
because each has its own q (see `Proposal`): shared by draws with replacement, cut and renormalised without, one-hot for
children that were picked (Medusa, EAGLE-2), for which it says: accept x with r(x), else strike it out. A chain is the
tree of width one, and this rule is then that of `sampling.verify`, which decides a chain without waiting in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.models.tree import ROOT, Tree
from specdemo.sampling import draw, residual


@dataclass(frozen=True)
class Walk:
    """path: the accepted nodes, from the text outwards. accept: acceptance probability of each node that was tested.
    token: the target's own token behind the path, drawn from source [vocab]. thresholds: by typical acceptance, what p
    of each node had to exceed."""

    path: list[int]
    accept: dict[int, float]
    token: int
    source: Tensor
    thresholds: list[float] | None = None


def walk(p: Tensor, q: Tensor | None, ids: list[int], tree: Tree, u_accept: Tensor, u_token: Tensor) -> Walk:
    """Decide over a tree of n nodes.

    Where p or q is NaN (see `sampling.probabilities`) every test fails, with a NaN in `accept` for exact tests.

    Args:
        p: target distributions [n + 1, vocab]; row 0 behind the text, row i + 1 behind node i.
        q: what each node was drawn from, [n, vocab], given its elder siblings; None where all were chosen (one-hot).
        ids: the nodes' tokens, n of them.
        u_accept, u_token: uniforms [n] for the tests and [] for the target's own token, all independent.
    """
    uniforms = u_accept.tolist()
    path: list[int] = []
    accept: dict[int, float] = {}
    node, left = ROOT, p[0]
    while True:
        for child in tree.children(node):
            token = ids[child]
            share = left[token] if q is None else left[token] / q[child, token]
            accept[child] = min(float(share), 1.0)  # in this order: a NaN stays one, and passes no test
            if uniforms[child] < accept[child]:
                path.append(child)
                node, left = child, p[child + 1]
                break
            left = _struck(left, token) if q is None else residual(left, q[child])
        else:
            return Walk(path, accept, int(draw(left, u_token)), left)


EPSILON, DELTA = 0.09, 0.3
"""Medusa's own constants: what is likelier than EPSILON is typical, and so is less where p is spread widely."""


def walk_typically(p: Tensor, ids: list[int], tree: Tree, u_token: Tensor) -> Walk:
    """Medusa's typical acceptance (Cai et al. 2024, 2401.10774, section 2.3.1), arguments as in `walk`. NOT exact.

    A node x is kept if p(x) > min(EPSILON, DELTA exp(-H(p))) behind its parent, whatever else the target might have
    said; the longest path of such nodes is taken, the earliest of several. Texts are plausible and no longer drawn from
    the target's distribution (but for temperature 0, where only the first choice is typical).
    """
    entropy = torch.special.entr(p).sum(-1)
    rows = [parent + 1 for parent in tree.parents]
    thresholds = (DELTA * (-entropy).exp()).clamp_max(EPSILON)[rows]
    typical = (p[rows, ids] > thresholds).tolist()
    paths = map(tree.path, range(len(tree)))
    path = max((path for path in paths if all(typical[i] for i in path)), key=len, default=[])
    refused = [i for node in (ROOT, *path) for i in tree.children(node) if not typical[i]]
    last = p[path[-1] + 1 if path else 0]
    accept = dict.fromkeys(path, 1.0) | dict.fromkeys(refused, 0.0)
    return Walk(path, accept, int(draw(last, u_token)), last, thresholds.tolist())


def _struck(left: Tensor, token: int) -> Tensor:
    """norm(left without a token): its residual against a one-hot q, without the zeros."""
    rest = left.clone()
    rest[token] = 0
    total = rest.sum()
    return rest / total if total > 0 else left
