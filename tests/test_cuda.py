"""The core checks again on a CUDA GPU: `pytest -m cuda`. Skipped where there is none."""

from __future__ import annotations

import threading

import pytest
import torch

from specdemo.decoding.clock import Clock
from specdemo.drafters import DRAFTERS
from specdemo.events import RaceEnd
from specdemo.metrics import RaceMetrics
from specdemo.models.loading import LoadedPair, load_pair
from specdemo.models.pairs import DEFAULT_PAIR, PAIRS
from specdemo.race import race
from specdemo.settings import SamplerSettings, Settings
from tests.exact import joint_distribution, p_value
from tests.test_exactness import prompt_of, sample
from tests.tiny import Tiny

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def pair(request: pytest.FixtureRequest) -> LoadedPair:
    return load_pair(PAIRS[DEFAULT_PAIR], torch.device("cuda"), request.param)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_lanes_agree_on_the_gpu(pair: LoadedPair, drafter: str) -> None:
    settings = Settings.checked(prompt="Explain photosynthesis.", drafter=drafter, max_tokens=100, record=False)
    events = list(race(pair, settings, threading.Event()))
    assert isinstance(events[-1], RaceEnd)
    assert events[-1].check.verdict in ("identical", "near_tie")
    assert RaceMetrics.of(events).speculative.tokens > 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_distribution_is_the_targets_on_the_gpu(drafter: str) -> None:
    sampler = SamplerSettings(temperature=0.8)
    target, draft = Tiny(5, 1, device="cuda"), Tiny(5, 2, layers=1, device="cuda")
    expected = joint_distribution(Tiny(5, 1).oracle, prompt_of(5), 4, sampler)
    texts = sample(target.lean, draft.lean, drafter, sampler, 2, 4)
    assert p_value(texts, expected) > 1e-3


def test_the_clock_measures_the_gpu_without_forcing_it_to_wait() -> None:
    clock = Clock(torch.device("cuda"))
    x = torch.randn(4096, 4096, device="cuda")
    clock.start()
    for _ in range(20):
        x = x @ x / 64
    clock.lap()
    laps = clock.stop()
    assert len(laps) == 2
    assert laps[0] > laps[1]
    assert clock.seconds == pytest.approx(sum(laps))
