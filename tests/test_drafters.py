"""Drafters and the trees they grow, without a target that decides."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from specdemo.drafters.base import Proposal
from specdemo.drafters.best_of import BestOf
from specdemo.drafters.dynamic_tree import BEAM, Growing, TreeShape
from specdemo.drafters.eagle import Eagle
from specdemo.drafters.medusa import Medusa, sparse_tree
from specdemo.models.cache import KVCache
from specdemo.models.costs import Costs
from specdemo.models.tree import ROOT, Tree
from tests.heads import eagle_head, medusa_heads
from tests.tiny import Tiny

TINY = Tiny(8, seed=1)
never = lambda: False  # noqa: E731


# --- The dynamic tree ---


def grown(shape: TreeShape, shares: list[float]) -> Growing:
    """A tree in which every node has the same children."""
    growing, beam = Growing(shape), [ROOT]
    while beam and growing.steps < shape.depth:
        children = len(shares)
        beam = growing.add(beam, [list(range(children)) for _ in beam], [shares for _ in beam])
    return growing


def test_the_best_nodes_of_all_depths_are_kept_and_form_a_tree() -> None:
    growing = grown(TreeShape(depth=3, nodes=5), [0.6, 0.3])
    nodes = growing.rerank()
    # 0.6, 0.36, 0.3, 0.216, and 0.18 for the first of three that have it
    assert [round(growing.chances[node], 3) for node in nodes] == [0.6, 0.3, 0.36, 0.18, 0.216]
    assert growing.tree_of(nodes).parents == (ROOT, ROOT, 0, 0, 2)


@pytest.mark.parametrize("nodes", [1, 4, 9, 30])
def test_no_other_tree_of_that_size_has_a_larger_expectation(nodes: int) -> None:
    shares = [0.5, 0.25, 0.15]
    growing = grown(TreeShape(depth=4, nodes=nodes), shares)
    kept = [growing.chances[node] for node in growing.rerank()]
    paths = [path for depth in range(1, 5) for path in itertools.product(shares, repeat=depth)]
    best = sorted((math.prod(path) for path in paths), reverse=True)[:nodes]
    assert sum(kept) == pytest.approx(sum(best))
    assert growing.steps <= 4
    assert all(len(growing.rerank()) <= nodes for _ in range(2))


def test_a_tree_is_as_large_as_it_pays() -> None:
    """Where verification is dear a few nodes are verified, where it is free all of them; a hopeless draft none."""
    dear = TreeShape(5, 16, lambda steps, nodes: 1 + 0.05 * steps + 0.3 * nodes)
    free = TreeShape(5, 16, lambda steps, nodes: 1 + 0.001 * steps)
    sure, unsure = [0.7, 0.2, 0.05], [0.02, 0.01, 0.01]
    assert len(grown(dear, sure).rerank()) < 4 < len(grown(free, sure).rerank()) == 16
    assert grown(dear, sure).steps < grown(free, sure).steps
    assert grown(dear, unsure).rerank() == []


def test_a_tree_grows_past_a_size_that_does_not_pay() -> None:
    """Where a pass over two tokens costs what one over six does, one node is not worth it and two of them are."""
    flat = TreeShape(2, 16, lambda steps, nodes: 1 + 0.01 * steps + 0.5 * min(1, nodes))
    assert grown(flat, [0.45]).steps == 2
    assert len(grown(flat, [0.45]).rerank()) == 2
    assert grown(flat, [0.2]).rerank() == []


def test_only_a_beam_is_expanded() -> None:
    growing = Growing(TreeShape(3, 64))
    first = growing.add([ROOT], [list(range(12))], [[1 / 12] * 12])
    assert len(first) == BEAM


# --- Medusa's sparse tree ---


def test_the_sparse_tree_is_the_papers_greedy_construction() -> None:
    accuracies = [[0.6, 0.15, 0.1], [0.4, 0.12, 0.08], [0.3, 0.1, 0.05]]
    for nodes in (1, 3, 6, 12):
        ranks, parents = sparse_tree(accuracies, TreeShape(3, nodes))
        tree = Tree(tuple(parents))
        found = [
            math.prod(accuracies[depth][ranks[node]] for depth, node in enumerate(tree.path(i))) for i in range(nodes)
        ]
        every = [
            math.prod(accuracies[depth][rank] for depth, rank in enumerate(path))
            for length in (1, 2, 3)
            for path in itertools.product(range(3), repeat=length)
        ]
        assert sum(found) == pytest.approx(sum(sorted(every, reverse=True)[:nodes]))
        for node in range(nodes):  # better siblings are tested first
            assert [ranks[i] for i in tree.children(node)] == sorted(ranks[i] for i in tree.children(node))


def test_a_sparse_tree_ends_where_it_no_longer_pays() -> None:
    accuracies = [[0.6, 0.15, 0.1], [0.4, 0.12, 0.08]]
    ranks, _ = sparse_tree(accuracies, TreeShape(2, 10, lambda steps, nodes: 1 + 0.2 * nodes))
    assert 0 < len(ranks) < 4
    assert sparse_tree(accuracies, TreeShape(2, 10, lambda steps, nodes: 1 + nodes)) == ([], [])


def test_heads_that_were_never_right_still_give_a_tree() -> None:
    ranks, parents = sparse_tree([[0.0, 0.0], [0.0, 0.0]], TreeShape(2, 5))
    assert len(ranks) == len(parents) == 5


def test_medusa_fills_its_tree_with_each_heads_best() -> None:
    heads = medusa_heads(TINY.lean)
    runner = TINY.lean.runner(32, taps=heads.taps)
    prompt = [3, 1, 4, 1, 5]
    runner.prefill(prompt[:-1])
    drafter = Medusa(heads, 8, TreeShape(3, 9))
    drafter.prefill(prompt, runner, never)
    proposal = drafter.propose(prompt, 9, never)
    ranked = heads.logits(runner.features[-1]).argsort(-1, descending=True)
    for node, token in enumerate(proposal.ids.tolist()):
        assert token == ranked[proposal.tree.depth(node), drafter.ranks[node]]
    assert max(proposal.tree.depth(node) for node in range(len(proposal))) > 0
    shallow = drafter.propose(prompt, 1, never)  # one token is all that could be emitted
    assert {shallow.tree.depth(node) for node in range(len(shallow))} == {0}


# --- EAGLE ---


def test_eagle_keeps_the_targets_states_alone_in_its_cache() -> None:
    """Drafting leaves nothing behind: after any rounds the cache is that of one pass over the text."""
    head = eagle_head(TINY.lean)
    runner = TINY.lean.runner(40, taps=head.taps)
    text = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5]
    drafter = Eagle(head, 8, TreeShape(4, 12))
    runner.prefill(text[:3])
    drafter.prefill(text[:4], runner, never)
    for end in (4, 5, 8, 10):
        if runner.length < end - 1:
            runner.prefill(text[runner.length : end - 1])
        proposal = drafter.propose(text[:end], 12, never)
        assert 0 < len(proposal) <= 12
        fresh = KVCache(head, 40)
        head.forward(head.states(runner.features), torch.tensor(text[1:end]), fresh)
        assert drafter.cache.lengths == fresh.lengths == [end - 1]
        for mine, theirs in zip(drafter.cache.layers, fresh.layers, strict=True):
            torch.testing.assert_close(mine[..., : end - 1, :], theirs[..., : end - 1, :], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [TreeShape(3, 6), TreeShape(4, 16), TreeShape(5, 3), TreeShape(1, 4)])
def test_a_tree_grown_ahead_is_the_tree_grown_step_by_step(shape: TreeShape) -> None:
    """What a GPU expands without being asked is taken where it would have been asked for."""
    drafters = [Eagle(eagle_head(TINY.lean), 8, shape) for _ in range(2)]
    trees = []
    for drafter, ahead in zip(drafters, (False, True), strict=True):
        runner = TINY.lean.runner(48, taps=drafter.taps)
        runner.prefill([3, 1, 4, 1])
        drafter.prefill([3, 1, 4, 1, 5], runner, never)
        growing, state = Growing(shape), drafter._read([3, 1, 4, 1, 5], 4)[-1:]
        if ahead:
            drafter._grow_ahead(growing, state, shape.depth)
        else:
            drafter._grow(growing, state, shape.depth, never)
        nodes = growing.rerank()
        trees.append((growing.tree_of(nodes), [growing.ids[node] for node in nodes]))
        assert len(nodes) == min(shape.nodes, len(growing.ids))
    assert trees[0] == trees[1]


def test_an_eagle_nodes_chance_is_the_heads_own_along_a_chain() -> None:
    """Each node's probability, read afresh along its own ancestors as a plain chain: masks and positions are right."""
    head = eagle_head(TINY.lean)
    runner, text = TINY.lean.runner(40, taps=head.taps), [3, 1, 4, 1, 5]
    runner.prefill(text[:-1])
    drafter = Eagle(head, 8, TreeShape(4, 14))
    drafter.prefill(text, runner, never)
    proposal = drafter.propose(text, 14, never)
    assert max(proposal.tree.depth(node) for node in range(len(proposal))) >= 2
    ids = proposal.ids.tolist()
    for node in range(len(proposal)):
        cache, chance = KVCache(head, 40), 1.0
        state = head.forward(head.states(runner.features), torch.tensor(text[1:]), cache)[-1:]
        for step in proposal.tree.path(node):
            chance *= float(head.logits(state).softmax(-1)[0, ids[step] - 1])  # the head lacks token 0
            state = head.forward(state, torch.tensor([ids[step]]), cache)
        assert proposal.chances[node] == pytest.approx(chance, rel=1e-3)


@pytest.mark.parametrize("prompt", [[5], [5, 2]])
def test_heads_draft_behind_the_shortest_prompts(prompt: list[int]) -> None:
    """Behind one token the target has no state yet, so there is nothing to draft from."""
    for make in (
        lambda: Eagle(eagle_head(TINY.lean), 8, TreeShape()),
        lambda: Medusa(medusa_heads(TINY.lean), 8, TreeShape()),
    ):
        drafter = make()
        runner = TINY.lean.runner(16, taps=drafter.taps)
        if len(prompt) > 1:
            runner.prefill(prompt[:-1])
        drafter.prefill(prompt, runner, never)
        assert bool(len(drafter.propose(prompt, 8, never))) == (len(prompt) > 1)


# --- The best of several ---


class Says:
    """Always the same draft."""

    taps, longest_context = (), None

    def __init__(self, ids: list[int], steps: int = 0) -> None:
        self.ids, self.steps = ids, steps

    def prefill(self, prompt, target, stop) -> None: ...

    def propose(self, context, gamma, stop) -> Proposal:
        drafted = Proposal.certain(self.ids[:gamma], 9, torch.device("cpu"))
        return Proposal(drafted.ids, drafted.q, self.steps)

    def rollback(self, length) -> None: ...


def asked(best: BestOf, accepted: dict[int, int], rounds: int) -> list[int]:
    """First tokens of some rounds' drafts, where of each draft so many tokens are accepted by its first one."""
    firsts = []
    for length in range(rounds):
        drafted = best.propose([0] * (10 * length + 10), 8, never).ids.tolist()
        firsts.append(drafted[0])
        best.rollback(10 * length + 10 + min(accepted[drafted[0]], len(drafted)))
    return firsts


def test_a_lookup_that_is_wrong_loses_its_turn_and_one_that_is_right_keeps_it() -> None:
    costs = Costs(c=0.1, v=tuple(1 + 0.05 * k for k in range(17)), o=0.0)
    make = lambda: BestOf([Says([1] * 6)], Says([2] * 4, steps=4), costs)  # noqa: E731
    wrong = asked(make(), {1: 0, 2: 3}, 12)
    assert wrong[0] == 1
    assert wrong.count(2) > 8
    assert asked(make(), {1: 6, 2: 3}, 12) == [1] * 12
    # A last drafter that is refused as well gives the lookup its turn again.
    assert asked(make(), {1: 0, 2: 0}, 40)[-20:].count(1) > 2


def test_a_lookup_drafts_as_far_as_it_is_trusted() -> None:
    costs = Costs(c=0.1, v=tuple(1 + 0.02 * k for k in range(17)), o=0.0)
    best = BestOf([Says([1] * 8)], Says([2] * 2, steps=2), costs)
    first = len(best.propose([0] * 10, 8, never))
    best.rollback(10 + first)
    for length in (30, 50):
        best.propose([0] * length, 8, never)
        best.rollback(length + 8)
    assert first < len(best.propose([0] * 90, 8, never))
