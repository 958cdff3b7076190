"""The claim everything rests on: the output distribution is the target's, and the tests would notice if it were not.

Texts are sampled through the real decoder, runner, cache and drafter on small random transformers, and the *joint*
distribution of the first gamma + 2 tokens (so that a round border is crossed) is compared with exact enumeration.
Sound code gives p > 1e-3 at these fixed seeds; each planted bug gives p < 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import specdemo.decoding.recording as recording_module
import specdemo.drafters.draft_model as draft_module
import specdemo.sampling as sampling
from specdemo.decoding.baseline import baseline
from specdemo.decoding.gamma import Auto, Fixed, Policy
from specdemo.decoding.request import Request
from specdemo.decoding.speculative import speculative
from specdemo.drafters import DRAFTERS, DraftJob
from specdemo.drafters.base import Proposal
from specdemo.drafters.dynamic_tree import TreeShape
from specdemo.events import Event, Round
from specdemo.models.costs import Costs
from specdemo.models.lean_runner import LeanRunner
from specdemo.models.runner import LanguageModel
from specdemo.settings import SamplerSettings
from tests.exact import Text, joint_distribution, p_value
from tests.heads import heads_for
from tests.policies import Cycle
from tests.tiny import STORE, Tiny

VOCAB = {1: 5, 2: 5, 3: 4, 4: 3, 5: 3}  # smaller for longer drafts, so that every text can be enumerated
SAMPLERS = {
    "greedy": SamplerSettings(temperature=0),
    "temperature": SamplerSettings(temperature=0.8),
    "hot": SamplerSettings(temperature=1.3),
    "top_k": SamplerSettings(temperature=1.0, top_k=2),
    "top_p": SamplerSettings(temperature=1.0, top_p=0.8),
    "min_p": SamplerSettings(temperature=1.0, min_p=0.2),
}
SAMPLES, BUG_SAMPLES = 400, 1200


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    yield
    torch.set_num_threads(threads)


def prompt_of(vocab: int) -> list[int]:
    """A prompt that repeats itself, so that lookup finds something."""
    return [i % vocab for i in (0, 1, 2, 0, 1, 2, 1, 0, 1, 2)]


def emitted(events: Iterator[Event]) -> Text:
    return tuple(token.id for event in events if isinstance(event, Round) for token in event.emitted)


def sample(
    target: LanguageModel,
    draft: LanguageModel,
    drafter: str,
    sampler: SamplerSettings,
    gamma: int | Callable[[], Policy],
    length: int,
    samples: int = SAMPLES,
    confidence: float = 0.0,
    shape: TreeShape | None = None,
) -> list[Text]:
    prompt = prompt_of(target.vocab_size)
    capacity = len(prompt) + 3 * length  # room for planted bugs that leave rejected tokens in the cache
    texts, heads = [], heads_for(target)
    shape = shape or TreeShape(depth=length - 2, nodes=6)
    for seed in range(samples if sampler.temperature else 3):
        request = Request(prompt, sampler, length, decode=str, seed=seed)
        made = DRAFTERS[drafter].make(
            DraftJob(target, draft, sampler, seed, capacity, confidence, STORE, heads, shape=shape)
        )
        policy = Fixed(gamma) if isinstance(gamma, int) else gamma()
        texts.append(emitted(speculative(target, made, request, policy, capacity)))
    return texts


def pair_for(gamma: int) -> tuple[Tiny, Tiny]:
    return Tiny(VOCAB[gamma], seed=1), Tiny(VOCAB[gamma], seed=2, layers=1)


@pytest.mark.parametrize(
    ("drafter", "gamma"),
    [(name, gamma) for name, kind in DRAFTERS.items() for gamma in ((2, 4) if kind.is_tree else (1, 2, 3, 4, 5))],
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_speculative_text_is_distributed_as_the_targets(drafter: str, sampler: str, gamma: int) -> None:
    target, draft = pair_for(gamma)
    length = gamma + 2
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), length, SAMPLERS[sampler])
    texts = sample(target.lean, draft.lean, drafter, SAMPLERS[sampler], gamma, length)
    assert p_value(texts, expected) > 1e-3


@pytest.mark.parametrize("drafter", [name for name, kind in DRAFTERS.items() if "layers" not in kind.needs])
def test_it_holds_through_the_transformers_runner(drafter: str) -> None:
    target, draft = pair_for(2)
    sampler = SAMPLERS["temperature"]
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 4, sampler)
    texts = sample(target.transformers, draft.transformers, drafter, sampler, 2, 4, samples=400)
    assert p_value(texts, expected) > 1e-3


def test_it_holds_while_gamma_changes_from_round_to_round() -> None:
    target, draft = pair_for(3)
    sampler = SAMPLERS["temperature"]
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 5, sampler)
    texts = sample(target.lean, draft.lean, "draft-model", sampler, lambda: Cycle(2, 0, 3, 1), 5)
    assert p_value(texts, expected) > 1e-3


@pytest.mark.parametrize("sampler", ["temperature", "top_p"])
def test_it_holds_while_gamma_is_chosen_live(sampler: str) -> None:
    target, draft = pair_for(3)
    costs = Costs(c=0.1, v=tuple(1 + 0.05 * k for k in range(17)), o=0.05)
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 5, SAMPLERS[sampler])
    texts = sample(target.lean, draft.lean, "draft-model", SAMPLERS[sampler], lambda: Auto(costs), 5)
    assert p_value(texts, expected) > 1e-3


@pytest.mark.parametrize("drafter", ["draft-model", "combined"])
@pytest.mark.parametrize("confidence", [0.1, 0.3, 0.6])
def test_it_holds_while_unsure_drafts_end_early(drafter: str, confidence: float) -> None:
    """The tiny draft's largest probability is often below 0.6, so drafts of every length occur."""
    target, draft = pair_for(3)
    sampler = SAMPLERS["temperature"]
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 5, sampler)
    texts = sample(target.lean, draft.lean, drafter, sampler, 3, 5, confidence=confidence)
    assert p_value(texts, expected) > 1e-3


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "combined-eagle"])
@pytest.mark.parametrize("sampler", ["greedy", "temperature", "hot", "top_p"])
@pytest.mark.parametrize("shape", [TreeShape(1, 3), TreeShape(3, 12), TreeShape(3, 8, lambda s, n: 1 + 0.02 * (s + n))])
def test_it_holds_for_trees_of_every_shape(drafter: str, sampler: str, shape: TreeShape) -> None:
    target, draft = pair_for(2)
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 4, SAMPLERS[sampler])
    texts = sample(target.lean, draft.lean, drafter, SAMPLERS[sampler], shape.depth, 4, shape=shape)
    assert p_value(texts, expected) > 1e-3


def test_the_baseline_is_distributed_as_the_target() -> None:
    target, _ = pair_for(2)
    sampler, prompt = SAMPLERS["top_p"], prompt_of(target.vocab)
    expected = joint_distribution(target.oracle, prompt, 4, sampler)
    requests = (Request(prompt, sampler, 4, decode=str, seed=seed) for seed in range(SAMPLES))
    texts = [emitted(baseline(target.lean, request, 32)) for request in requests]
    assert p_value(texts, expected) > 1e-3


# --- Planted bugs: each is the smallest change that published implementations have really made. ---


def off_by_one_logits(patch: pytest.MonkeyPatch) -> None:
    right = sampling.verify
    shifted = lambda p, q, *rest: right(torch.cat([p[:1], p[:-1]]), q, *rest)  # noqa: E731
    patch.setattr(recording_module, "verify", shifted)


def residual_not_renormalised(patch: pytest.MonkeyPatch) -> None:
    def unnormalised(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        excess = (p - q).clamp_min(0)
        excess[-1] += 1 - excess.sum()  # a cumulative draw from masses that do not reach 1 ends at the last token
        return excess

    patch.setattr(sampling, "residual", unnormalised)


def replacement_drawn_from_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampling, "residual", lambda p, q: p)


def bonus_drawn_from_q(patch: pytest.MonkeyPatch) -> None:
    right = sampling.verify
    wrong = lambda p, q, *rest: right(torch.cat([p[:-1], q[-1:]]) if len(q) else p, q, *rest)  # noqa: E731
    patch.setattr(recording_module, "verify", wrong)


def q_recorded_before_warping(patch: pytest.MonkeyPatch) -> None:
    right = draft_module.DraftModel.propose

    def propose(self, context, gamma, stop):
        seen = []
        warp = sampling.probabilities
        patch.setattr(
            draft_module,
            "probabilities",
            lambda logits, sampler: (seen.append(logits.softmax(-1)), warp(logits, sampler))[1],
        )
        proposal = right(self, context, gamma, stop)
        return Proposal(proposal.ids, torch.stack(seen)) if len(proposal) else proposal

    patch.setattr(draft_module.DraftModel, "propose", propose)


def one_uniform_reused(patch: pytest.MonkeyPatch) -> None:
    right = sampling.verify
    wrong = lambda p, q, drafts, u, u_token: right(p, q, drafts, u, u[0] if len(u) else u_token)  # noqa: E731
    patch.setattr(recording_module, "verify", wrong)


def rejected_kv_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeanRunner, "keep", lambda self, length, slots: None)


def low_confidence_draft_dropped(patch: pytest.MonkeyPatch) -> None:
    right = draft_module.DraftModel.propose

    def propose(self, context, gamma, stop):
        proposal = right(self, context, gamma, stop)
        own = proposal.q.gather(-1, proposal.ids[:, None])[:, 0]
        keep = int((own > 0.4).cumprod(0).sum())
        return Proposal(proposal.ids[:keep], proposal.q[:keep])

    patch.setattr(draft_module.DraftModel, "propose", propose)


@pytest.mark.parametrize(
    ("bug", "temperature", "gamma"),
    [
        (off_by_one_logits, 0.8, 2),
        (residual_not_renormalised, 0.8, 2),
        (replacement_drawn_from_p, 0.8, 2),
        (bonus_drawn_from_q, 0.8, 2),
        (q_recorded_before_warping, 2.0, 2),
        (one_uniform_reused, 0.8, 1),
        (rejected_kv_kept, 0.8, 2),
        (low_confidence_draft_dropped, 0.8, 2),
    ],
)
def test_a_planted_bug_is_caught(
    bug: Callable, temperature: float, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair_for(gamma)
    sampler, length = SamplerSettings(temperature=temperature), gamma + 2
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), length, sampler)
    bug(monkeypatch)
    texts = sample(target.lean, draft.lean, "draft-model", sampler, gamma, length, BUG_SAMPLES)
    assert p_value(texts, expected) < 1e-6


def test_a_wrong_position_after_rollback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions go on counting what was rolled back: the rotary tables are moved along by the tokens forgotten."""
    target, draft = pair_for(2)
    sampler = SAMPLERS["temperature"]
    expected = joint_distribution(target.oracle, prompt_of(target.vocab), 4, sampler)
    right = LeanRunner.keep

    def keep(self, length: int, slots: list[int]) -> None:
        forgotten = self.length - length - len(slots)
        self.cache.cos, self.cache.sin = self.cache.cos.roll(-forgotten, 0), self.cache.sin.roll(-forgotten, 0)
        right(self, length, slots)

    monkeypatch.setattr(LeanRunner, "keep", keep)
    texts = sample(target.lean, draft.lean, "draft-model", sampler, 2, 4, BUG_SAMPLES)
    assert p_value(texts, expected) < 1e-6
