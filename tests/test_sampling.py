"""The arithmetic of speculative sampling, against transformers' warpers and against its own definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specdemo.sampling import Uniforms, draw, probabilities, residual, verify
from specdemo.settings import SamplerSettings
from tests.exact import warped

logit_rows = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(2, 40)), elements=st.floats(-20, 20, width=32))


@given(
    logit_rows,
    st.floats(0.05, 3),
    st.integers(0, 45),
    st.floats(0.05, 1),
    st.floats(0, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_warping_agrees_with_transformers(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rows = torch.from_numpy(logits + np.linspace(0, 0.01, logits.shape[-1], dtype=np.float32))  # no exact ties
    sampler = SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ours, theirs = probabilities(rows, sampler), warped(rows, sampler)
    kept_differently = (ours > 0) != (theirs > 0)
    # A token whose cumulative mass meets top_p, or whose probability meets min_p, to the last bit may go either way.
    assert theirs[kept_differently].sum() + ours[kept_differently].sum() < 2e-2 or _on_the_edge(rows, sampler)
    if not kept_differently.any():
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.sum(-1), torch.ones(len(rows)))


def _on_the_edge(rows: torch.Tensor, sampler: SamplerSettings) -> bool:
    probs = warped(rows, sampler.model_copy(update={"top_p": 1.0, "min_p": 0.0}))
    ranked = probs.sort(-1, descending=True).values
    near_p = ((ranked.cumsum(-1) - sampler.top_p).abs() < 1e-5).any()
    near_min = ((ranked / ranked[..., :1] - sampler.min_p).abs() < 1e-5).any()
    return bool(near_p or near_min)


def test_temperature_zero_puts_all_mass_on_the_largest_logit() -> None:
    probs = probabilities(torch.tensor([[0.1, 3.0, 2.9]]), SamplerSettings(temperature=0))
    assert probs.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-9, 1e-50, 5e-324])
def test_a_tiny_temperature_neither_overflows_nor_differs_from_greedy(temperature: float) -> None:
    probs = probabilities(torch.tensor([[80.0, 90.0, -90.0]]), SamplerSettings(temperature=temperature))
    assert probs.tolist() == [[0, 1, 0]]


def test_a_flat_distribution_wider_than_the_first_guess_gets_its_whole_nucleus() -> None:
    probs = probabilities(torch.linspace(0, 0.1, 5000), SamplerSettings(temperature=1, top_p=0.9))
    kept = int((probs > 0).sum())
    assert 4400 < kept < 4600


@given(st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_a_draw_never_gives_a_token_of_probability_zero(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(200, 30, generator=generator) * (torch.rand(200, 30, generator=generator) < 0.2)
    probs[:, 17] += 1e-6
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64).repeat(100)
    ids = draw(probs, edges)
    assert (probs.gather(-1, ids[:, None]) > 0).all()


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    ids = draw(probs.repeat(40_000, 1), Uniforms(0, "target", torch.device("cpu")).draw(40_000))
    shares = torch.bincount(ids, minlength=4) / 40_000
    assert shares[1] == 0
    torch.testing.assert_close(shares, probs, atol=0.01, rtol=0)


def test_the_two_streams_of_a_seed_are_independent_and_repeatable() -> None:
    cpu = torch.device("cpu")
    target, draft = (Uniforms(7, stream, cpu).draw(20_000) for stream in ("target", "draft"))
    assert torch.equal(target, Uniforms(7, "target", cpu).draw(20_000))
    assert abs(torch.corrcoef(torch.stack([target, draft]))[0, 1]) < 0.03


def test_the_residual_is_what_the_target_wants_and_the_drafter_did_not_offer() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    torch.testing.assert_close(residual(p, q), torch.tensor([0.75, 0.25, 0.0]))
    torch.testing.assert_close(residual(p, p), p)  # nothing left over: p itself


@pytest.mark.parametrize(
    ("u", "accepted", "token"),
    [
        ([0.0, 0.0], 2, 0),  # both pass, the bonus comes from the last row
        ([0.0, 0.9], 1, 2),  # the second fails: p/q = 0.25; the residual of row 1 is all on token 2
        ([0.9, 0.0], 0, 1),  # the first fails, the second is never tested
    ],
)
def test_drafts_are_tested_from_left_to_right(u: list[float], accepted: int, token: int) -> None:
    p = torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.0, 0.8], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.8, 0.2, 0.0], [0.8, 0.0, 0.2]])
    verdict = verify(p, q, torch.tensor([0, 0]), torch.tensor(u).double(), torch.tensor(0.5).double())
    assert (int(verdict.accepted), int(verdict.token)) == (accepted, token)
    torch.testing.assert_close(verdict.accept, torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(verdict.tv, torch.tensor([0.4, 0.6]))
