"""Texts drawn on a GPU have the target's own distribution, by a drafter of each kind: chain, grown tree, fixed tree."""

from __future__ import annotations

import pytest

from specdemo.settings import SamplerSettings
from tests.exact import joint_distribution, p_value
from tests.test_exactness import prompt_of, sample
from tests.tiny import Tiny

LENGTH, SAMPLES = 4, 250


@pytest.mark.parametrize("drafter", ["draft-model", "eagle", "medusa"])
@pytest.mark.parametrize("sampler", [SamplerSettings(temperature=0.8), SamplerSettings(temperature=1.0, top_p=0.8)])
def test_the_distribution_is_the_targets(drafter: str, sampler: SamplerSettings) -> None:
    target, draft = Tiny(5, 1, device="cuda:0").lean, Tiny(5, 2, layers=1, device="cuda:0").lean
    expected = joint_distribution(Tiny(5, 1).oracle, prompt_of(5), LENGTH, sampler)
    assert p_value(sample(target, draft, drafter, sampler, 2, LENGTH, SAMPLES), expected) > 1e-3
