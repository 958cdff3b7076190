"""The core checks again on a CUDA GPU: `pytest -m cuda`. Skipped where there is none."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

from specdemo.decoding.clock import Clock
from specdemo.drafters import DRAFTERS
from specdemo.events import LaneEvent, RaceEnd, Round
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


@pytest.mark.parametrize("drafter", [name for name, kind in DRAFTERS.items() if not kind.is_tree])
def test_a_round_synchronises_once(pair: LoadedPair, drafter: str) -> None:
    settings = Settings.checked(
        prompt="Count to forty.", drafter=drafter, max_tokens=60, record=False, mode="speculative"
    )
    list(race(pair, settings, threading.Event()))  # recordings are made now
    events = race(pair, settings, threading.Event())
    rounds = 0
    torch.cuda.set_sync_debug_mode("warn")
    try:
        while rounds < 30:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                event = next(events)
            if isinstance(event, LaneEvent) and isinstance(event.event, Round):
                rounds += 1
                assert sum("synchroniz" in str(w.message) for w in caught) <= 1
    except StopIteration:
        pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rounds > 5


def test_replayed_passes_are_the_plain_forward(pair: LoadedPair) -> None:
    prompt = pair.tokens.encode("Say something about rivers.", chat=True)
    replayed, plain = pair.target.runner(200, passes=[1, 5]), pair.target.runner(200)
    plain.recorded = None
    for runner in (replayed, plain):
        runner.prefill(prompt)
    assert replayed.recorded.knows(5)
    tolerance = 1e-3 if pair.target.info.dtype == "fp32" else 0.5
    for ids in ([1, 2, 3, 4, 5], [7], [8, 9, 10, 11, 12]):
        torch.testing.assert_close(replayed.forward(ids), plain.forward(ids), atol=tolerance, rtol=tolerance)


def test_the_clock_measures_the_gpu_without_forcing_it_to_wait() -> None:
    clock = Clock(torch.device("cuda"))
    x = torch.randn(4096, 4096, device="cuda")
    clock.start()
    for _ in range(20):
        x = x @ x / 64
    clock.lap()
    clock.stop()
    first, second = clock.phases()
    assert first > second
    assert clock.seconds == pytest.approx(first + second)
