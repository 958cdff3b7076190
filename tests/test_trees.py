"""Trees of drafts give the target's distribution too, and the bugs that trees invite are caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import specdemo.decoding.tree as tree_module
import specdemo.sampling as sampling
from specdemo.decoding.gamma import Auto, Fixed
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.decoding.text import TextStream
from specdemo.drafters.base import Proposal
from specdemo.events import Draft, Round
from specdemo.models.costs import Costs
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.runner import LanguageModel
from specdemo.models.tree import ROOT, Tree
from specdemo.settings import SamplerSettings
from tests.exact import Text, joint_distribution, p_value
from tests.test_exactness import emitted, prompt_of
from tests.tiny import Tiny
from tests.trees import Choice, TreeOfSamples

SAMPLES = 500
LENGTH = 4
CHOICES: tuple[Choice, ...] = ("top", "chosen", "with replacement", "without replacement")
SAMPLERS = {
    "greedy": SamplerSettings(temperature=0),
    "0.8": SamplerSettings(temperature=0.8),
    "1.2": SamplerSettings(temperature=1.2),
    "top_p": SamplerSettings(temperature=1.0, top_p=0.8),
}
TARGET, DRAFT = Tiny(5, seed=1), Tiny(5, seed=2, layers=1)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    yield
    torch.set_num_threads(threads)


def sample(
    choice: Choice,
    sampler: SamplerSettings,
    widths: tuple[int, ...] = (2, 2),
    samples: int = SAMPLES,
    target: LanguageModel | None = None,
    make: Callable[..., TreeOfSamples] = TreeOfSamples,
) -> list[Text]:
    prompt, texts = prompt_of(5), []
    for seed in range(samples if sampler.temperature else 3):
        drafter = make(DRAFT.lean, sampler, seed, widths, choice)
        request = Request(prompt, sampler, LENGTH, decode=str, seed=seed)
        texts.append(emitted(speculative(target or TARGET.lean, drafter, request, Fixed(len(widths)), 48)))
    return texts


def expected(sampler: SamplerSettings) -> dict[Text, float]:
    return joint_distribution(TARGET.oracle, prompt_of(5), LENGTH, sampler)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_tree_gives_the_targets_distribution(choice: Choice, sampler: str) -> None:
    assert p_value(sample(choice, SAMPLERS[sampler]), expected(SAMPLERS[sampler])) > 1e-3


@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 1, 1)])
@pytest.mark.parametrize("choice", CHOICES)
def test_so_does_every_shape(choice: Choice, widths: tuple[int, ...]) -> None:
    texts = sample(choice, SAMPLERS["0.8"], widths, samples=400)
    assert p_value(texts, expected(SAMPLERS["0.8"])) > 1e-3


def test_it_holds_through_the_transformers_runner() -> None:
    texts = sample("without replacement", SAMPLERS["0.8"], samples=200, target=TARGET.transformers)
    assert p_value(texts, expected(SAMPLERS["0.8"])) > 1e-3


# --- Planted bugs ---


def residual_not_updated_between_siblings(patch: pytest.MonkeyPatch) -> None:
    """Every sibling is tested against the target's whole distribution, and so is what is drawn at the end."""

    def odds(p, q, ids, tree):
        rows, _ = tree.judged(p.device)
        at = ids[:, None]
        accept = (p[rows].gather(-1, at) / q.gather(-1, at))[:, 0].clamp_max(1)
        return tree_module.Odds(p[rows, ids], accept, sampling.residual(p[rows], q))

    patch.setattr("specdemo.decoding.recording.odds", odds)


def elders_not_struck_out(patch: pytest.MonkeyPatch) -> None:
    """Of chosen nodes: each is tested against the target's whole distribution."""
    right = Tree.judged

    def judged(self, device):
        rows, elders = right(self, device)
        return rows, torch.zeros_like(elders)

    patch.setattr(Tree, "judged", judged)


def chosen_but_drawn_again(patch: pytest.MonkeyPatch) -> None:
    """What was refused may still be drawn in the end."""
    patch.setattr(
        "specdemo.decoding.recording.leftover", lambda p, found, ids, tree, path: p[path[-1] + 1 if path else 0]
    )


def residual_never_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tree_module, "residual", lambda left, q: left)


def q_not_renormalised(patch: pytest.MonkeyPatch) -> None:
    """Without replacement, siblings keep the q of the first one, less what was drawn, and it no longer sums to 1."""
    right = TreeOfSamples._children

    def children(self, text, width):
        drawn = right(self, text, width)
        shrunk, q = [], drawn[0][1]
        for token, _ in drawn:
            shrunk.append((token, q))
            q = q.clone()
            q[token] = 0
        return shrunk

    patch.setattr(TreeOfSamples, "_children", children)


def wrong_parent_in_the_mask(patch: pytest.MonkeyPatch) -> None:
    right = Tree.behind

    def behind(self, tokens: int) -> Tree:
        parents = right(self, tokens).parents
        return Tree((ROOT, *(max(0, parent - 1) for parent in parents[1:])))

    patch.setattr(Tree, "behind", behind)


def rejected_branch_kept(patch: pytest.MonkeyPatch) -> None:
    right = LeanRunner.keep
    patch.setattr(
        LeanRunner, "keep", lambda self, length, slots: right(self, length, list(range(length, length + len(slots))))
    )


def sampled_children_reranked(patch: pytest.MonkeyPatch) -> None:
    """Children are drawn, then tested in the order of their confidence: who is first now depends on the draw."""
    right = TreeOfSamples._children

    def children(self, text, width):
        return sorted(right(self, text, width), key=lambda drawn: -float(drawn[1][drawn[0]]))

    patch.setattr(TreeOfSamples, "_children", children)


@pytest.mark.parametrize(
    ("bug", "choice", "widths", "samples"),
    [
        (residual_never_taken, "with replacement", (2, 2), 1500),
        (residual_not_updated_between_siblings, "with replacement", (3,), 1500),
        (elders_not_struck_out, "chosen", (3,), 1500),
        (chosen_but_drawn_again, "chosen", (2, 2), 1500),
        (q_not_renormalised, "without replacement", (3,), 1500),
        (wrong_parent_in_the_mask, "with replacement", (2, 2), 1500),
        (rejected_branch_kept, "with replacement", (3, 1), 3000),
        (sampled_children_reranked, "with replacement", (3,), 1500),
    ],
)
def test_a_planted_tree_bug_is_caught(
    bug: Callable, choice: Choice, widths: tuple[int, ...], samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = SamplerSettings(temperature=0.8)
    bug(monkeypatch)
    assert p_value(sample(choice, sampler, widths, samples), expected(sampler)) < 1e-6


# --- What a round says about a tree ---


def test_greedy_trees_write_the_plain_text_and_tell_every_nodes_fate() -> None:
    sampler, prompt = SamplerSettings(temperature=0), prompt_of(5)
    oracle = TARGET.oracle.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=None)
    drafter = TreeOfSamples(DRAFT.lean, sampler, 0, (2, 2), "top")
    request = Request(prompt, sampler, 30, decode=str, record=True)
    rounds = [e for e in speculative(TARGET.lean, drafter, request, Fixed(2), 64) if isinstance(e, Round)]
    text = [token.id for round_ in rounds for token in round_.emitted]
    assert text == oracle[0, len(prompt) :].tolist()
    seen = set()
    for round_ in rounds:
        seen |= {token.outcome for token in round_.drafted}
        if not round_.drafted:
            continue
        tree = Tree(tuple(round_.parents))
        kept = [i for i, token in enumerate(round_.drafted) if token.outcome == "accepted"]
        assert kept == (tree.path(kept[-1]) if kept else [])
        for i, token in enumerate(round_.drafted):
            assert token.position == round_.start + tree.depth(i)
            tested = token.outcome != "discarded"
            assert tested == (token.accept is not None)
            parent = tree.parents[i]
            assert tested <= (parent == ROOT or round_.drafted[parent].outcome == "accepted")
    assert seen >= {"accepted", "rejected", "discarded"}


def test_a_draft_tells_its_tree_before_the_verdict_each_text_behind_its_own_ancestors() -> None:
    pieces = (b"a", b"\xe6", b"\x97", b"\xa5", b"b")  # three tokens make one character, in this order alone

    def decode(ids: list[int]) -> str:
        return b"".join(pieces[i] for i in ids).decode(errors="replace")

    sampler, prompt = SamplerSettings(temperature=1.2), prompt_of(5)
    drafter = TreeOfSamples(DRAFT.lean, sampler, 0, (3, 3, 2), "without replacement")
    request = Request(prompt, sampler, 40, decode=decode, record=True)
    text, as_a_chain = TextStream(decode, prompt), []
    draft = None
    for event in speculative(TARGET.lean, drafter, request, Fixed(3), 96):
        if isinstance(event, Draft):
            draft = event
        if isinstance(event, Round):
            if event.drafted:
                ids = [token.id for token in event.drafted]
                tree = Tree(tuple(draft.parents))
                assert draft.parents == event.parents
                assert draft.texts == [text.peek([ids[i] for i in tree.path(node)])[-1] for node in range(len(ids))]
                as_a_chain.append(draft.texts == text.peek(ids))
            for token in event.emitted:
                text.push(token.id)
    assert not all(as_a_chain)


def test_a_tree_larger_than_the_room_left_is_cut() -> None:
    """Near the end of the text there is room for a few nodes only; with an auto gamma a tree may pass every length."""
    sampler, prompt = SamplerSettings(temperature=0), prompt_of(5)
    drafter = TreeOfSamples(DRAFT.lean, sampler, 0, (4, 2, 2), "top")
    policy = Auto(Costs(c=0.0, v=(1.0, 1.0, 1.0), o=0.0))
    events = speculative(TARGET.lean, drafter, Request(prompt, sampler, 12, decode=str), policy, len(prompt) + 12)
    text = emitted(events)
    oracle = TARGET.oracle.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert list(text) == oracle[0, len(prompt) :].tolist()


def test_a_tree_knows_its_paths() -> None:
    tree = Tree((ROOT, ROOT, 0, 0, 2))
    assert tree.children(ROOT) == [0, 1]
    assert tree.children(0) == [2, 3]
    assert tree.path(4) == [0, 2, 4]
    assert tree.behind(1).parents == (ROOT, 0, 0, 1, 1, 3)
    assert Proposal(torch.zeros(0), torch.zeros(0, 5)).tree is None


# --- Typical acceptance, which is not exact and says so ---


def test_typical_acceptance_takes_the_longest_path_of_likely_nodes() -> None:
    p = torch.tensor(
        [
            [0.5, 0.3, 0.05, 0.15],
            [0.05, 0.9, 0.04, 0.01],
            [0.7, 0.1, 0.1, 0.1],
            [1.0, 0, 0, 0],
            [0.25, 0.25, 0.25, 0.25],
        ]
    )
    tree = Tree((ROOT, ROOT, 0, 1))
    found = tree_module.typical_odds(p, torch.tensor([0, 1, 2, 0]), tree)
    # Node 0 is likely, its child is not; node 1 is likely enough, and so is its child: the longer path wins.
    assert found.accept.tolist() == [1, 1, 0, 1]
    path, tested = tree_module.longest_walk(tree, found.accept.tolist())
    assert (path, tested) == ([1, 3], [1, 3])
    assert found.thresholds.tolist() == pytest.approx([0.09] * 4)
    spread = tree_module.typical_odds(p[[4, 4]], torch.tensor([0]), Tree((ROOT,)))
    assert spread.thresholds.tolist() == pytest.approx([0.3 / 4])  # 0.3 exp(-H), H being ln 4 behind its parent
    assert torch.equal(tree_module.leftover(p, found, torch.tensor([0, 1, 2, 0]), tree, path), p[4])


def test_typical_acceptance_is_not_the_targets_distribution_and_greedy_is() -> None:
    warm = SamplerSettings(temperature=1.2)
    texts = []
    for seed in range(600):
        drafter = TreeOfSamples(DRAFT.lean, warm, seed, (2, 2), "top")
        request = Request(prompt_of(5), warm, LENGTH, decode=str, seed=seed, typical=True)
        texts.append(emitted(speculative(TARGET.lean, drafter, request, Fixed(2), 48)))
    assert p_value(texts, expected(warm)) < 1e-6
    greedy = SamplerSettings(temperature=0)
    drafter = TreeOfSamples(DRAFT.lean, greedy, 0, (2, 2), "top")
    request = Request(prompt_of(5), greedy, LENGTH, decode=str, typical=True)
    assert p_value([emitted(speculative(TARGET.lean, drafter, request, Fixed(2), 48))], expected(greedy)) == 1
