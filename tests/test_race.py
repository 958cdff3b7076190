"""The race: lanes share one device, each on its own clock, and the page is told the truth about greedy texts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, Gemma3TextConfig, GPT2Config

from specdemo.drafters import best_drafter
from specdemo.errors import UserError
from specdemo.events import End, Event, GreedyCheck, LaneEvent, Prefill, RaceEnd, RaceStart, Round, Start, Trace
from specdemo.metrics import RaceMetrics
from specdemo.models.loading import LoadedPair
from specdemo.models.pairs import Pair
from specdemo.models.tokens import Tokens
from specdemo.models.transformers_runner import TransformersLanguageModel
from specdemo.race import compare_greedy, interleave, race
from specdemo.settings import Settings
from tests.heads import heads_for
from tests.test_text import word_tokenizer
from tests.tiny import STORE, Tiny

TARGET, DRAFT = Tiny(8, seed=1), Tiny(8, seed=2)


def tiny_pair(draft: bool = True) -> LoadedPair:
    from tokenizers import pre_tokenizers

    tokenizer = word_tokenizer(list("abcdefgh"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pair = Pair("tiny", "tiny", "t", "d" if draft else None)
    return LoadedPair(pair, Tokens(tokenizer, frozenset()), TARGET.lean, DRAFT.lean if draft else None)


def settings(**values) -> Settings:
    usual = {"prompt": "a b c a b c", "pair": "tiny", "max_tokens": 20, "drafter": "draft-model", "gamma": 4}
    return Settings.checked(**usual | values)


def run(loaded: LoadedPair, wanted: Settings) -> list:
    return list(race(loaded, wanted, threading.Event()))


@pytest.mark.parametrize(
    ("drafter", "part"), [("draft-model", "draft"), ("eagle", "eagle"), ("combined-eagle", "eagle")]
)
def test_a_run_with_live_sizes_is_had_again_with_the_costs_of_its_trace(drafter: str, part: str) -> None:
    """Sizes go by what rounds cost, and what they cost here today may not be what they cost there then."""
    cheap = replace(tiny_pair(), store=STORE, heads=heads_for(TARGET.lean), steps={part: 0.01})
    dear = replace(cheap, steps={part: 0.6})
    wanted = settings(drafter=drafter, auto_gamma=True, temperature=1.0, mode="speculative", max_tokens=40)
    then, today = Trace.of(run(cheap, wanted)), Trace.of(run(dear, wanted))
    assert then.text("speculative") != today.text("speculative")
    then = Trace.from_json(then.to_json())
    again = Trace.of(race(dear, then.settings, threading.Event(), then.costs))
    assert again.text("speculative") == then.text("speculative")
    assert [len(r.drafted) for r in again.rounds("speculative")] == [len(r.drafted) for r in then.rounds("speculative")]
    assert again.costs == then.costs == {"speculative": cheap.costs_of(part)}


def test_a_trace_has_costs_only_where_they_decided_something() -> None:
    assert Trace.of(run(tiny_pair(), settings(gamma=3))).costs == {}
    assert Trace.of(run(tiny_pair(), settings(mode="baseline", auto_gamma=True))).costs == {}
    both = Trace.of(run(tiny_pair(), settings(auto_gamma=True, rival="prompt-lookup"))).costs
    assert both.keys() == {"speculative", "rival"}


def lane(step: float, rounds: int) -> Iterator[Event]:
    """A lane whose every round takes `step` seconds."""
    yield Start(prompt_tokens=1)
    yield Prefill(done=0, total=0, clock=step)
    for i in range(rounds):
        clock = step * (i + 2)
        yield Round(
            round=i,
            start=i,
            drafted=[],
            final=None,
            draft_seconds=0,
            verify_seconds=step,
            overhead_seconds=0,
            clock=clock,
        )
    yield End(reason="max_tokens", tokens=rounds, clock=step * (rounds + 1))


def test_the_lane_behind_on_its_own_clock_moves_next() -> None:
    clocks = {"baseline": 0.0, "speculative": 0.0, "rival": 0.0}
    lanes = {"baseline": lane(0.3, 40), "speculative": lane(0.1, 120), "rival": lane(0.2, 60)}
    for name, event in interleave(lanes):
        assert clocks[name] <= min(clocks.values())
        clocks[name] = getattr(event, "clock", 0.0)
        # At any moment all lanes have had the same compute time, to within one step of the slower.
        assert max(clocks.values()) - min(clocks.values()) < 0.3 + 1e-9
        if isinstance(event, End):
            break


@pytest.mark.parametrize(
    ("mode", "lanes"),
    [("race", {"baseline", "speculative"}), ("baseline", {"baseline"}), ("speculative", {"speculative"})],
)
def test_a_mode_runs_its_lanes(mode: str, lanes: set[str]) -> None:
    events = run(tiny_pair(), settings(mode=mode))
    assert isinstance(events[0], RaceStart)
    assert isinstance(events[-1], RaceEnd)
    assert {event.lane for event in events if isinstance(event, LaneEvent)} == lanes
    assert events[-1].check.verdict == ("identical" if mode == "race" else "unchecked")


@pytest.mark.parametrize(
    ("mode", "lanes"),
    [
        ("race", {"baseline", "speculative", "rival"}),
        ("speculative", {"speculative", "rival"}),
        ("baseline", {"baseline"}),
    ],
)
def test_a_rival_races_wherever_there_is_something_to_race(mode: str, lanes: set[str]) -> None:
    events = run(tiny_pair(), settings(mode=mode, rival="prompt-lookup"))
    starts = {e.lane: e.event.drafter for e in events if isinstance(e, LaneEvent) and isinstance(e.event, Start)}
    assert set(starts) == lanes
    assert starts.get("speculative") == ("draft-model" if "speculative" in lanes else None)
    assert starts.get("rival") == ("prompt-lookup" if "rival" in lanes else None)
    trace = Trace.of(events)
    assert len({trace.text(lane) for lane in lanes}) == 1
    assert trace.check.verdict == ("identical" if len(lanes) > 1 else "unchecked")
    assert Trace.from_json(trace.to_json()) == trace


def test_the_same_drafter_twice_is_two_drafters() -> None:
    events = run(tiny_pair(), settings(rival="draft-model", temperature=0.8))
    trace = Trace.of(events)
    rounds = [[r.drafted for r in trace.rounds(lane)] for lane in ("speculative", "rival")]
    assert rounds[0] == rounds[1] != []


def test_a_rival_that_the_pair_cannot_serve_is_refused() -> None:
    with pytest.raises(UserError, match="no drafter 'crystal-ball'"):
        run(tiny_pair(), settings(rival="crystal-ball"))
    with pytest.raises(UserError, match="no draft model"):
        run(tiny_pair(draft=False), settings(drafter="prompt-lookup", rival="draft-model"))


def test_a_trace_names_the_draft_model_whoever_of_the_two_uses_it() -> None:
    heads = [run(tiny_pair(), settings(drafter="prompt-lookup", rival=rival))[0].trace for rival in ("", "draft-model")]
    assert [head.draft is not None for head in heads] == [False, True]


@pytest.mark.parametrize("wrong", ["speculative", "rival"])
def test_the_worst_text_is_told_and_its_lane_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[list[int]] = []

    def compare(target, prompt, plain, other) -> GreedyCheck:
        texts.append(other)
        bad = len(texts) == ["speculative", "rival"].index(wrong) + 1
        return GreedyCheck(verdict="near_tie" if bad else "identical", compared=len(plain))

    monkeypatch.setattr("specdemo.race.compare_greedy", compare)
    check = run(tiny_pair(), settings(rival="prompt-lookup"))[-1].check
    assert (check.verdict, check.lane) == ("near_tie", wrong)
    assert len(texts) == 2


def test_a_race_can_be_kept_as_a_trace_and_read_back() -> None:
    events = run(tiny_pair(), settings(record=True))
    trace = Trace.of(events)
    again = type(trace).from_json(trace.to_json())
    assert again == trace
    assert again.text("baseline") == again.text("speculative")
    assert RaceMetrics.of(events).baseline.tokens == 20


def test_stop_ends_both_lanes_and_the_race() -> None:
    stop, events = threading.Event(), []
    for event in race(tiny_pair(), settings(max_tokens=40), stop):
        events.append(event)
        if len(events) == 12:
            stop.set()
    ends = [e.event for e in events if isinstance(e, LaneEvent) and isinstance(e.event, End)]
    assert [end.reason for end in ends] == ["stopped", "stopped"]
    assert isinstance(events[-1], RaceEnd)
    assert len(events) < 16


def test_above_temperature_zero_nothing_is_compared() -> None:
    assert run(tiny_pair(), settings(temperature=0.7))[-1].check.verdict == "unchecked"


def test_texts_that_part_at_a_wide_gap_are_a_bug_and_at_a_narrow_one_a_near_tie() -> None:
    prompt = [0, 1, 2]
    logits = TARGET.lean.runner(8).forward(prompt)[-1]
    best, second = logits.topk(2).indices.tolist()
    verdict = compare_greedy(TARGET.lean, prompt, [best, 0], [second, 0])
    assert (verdict.verdict, verdict.position) == ("different", 0)
    assert verdict.gap == pytest.approx(float(logits[best] - logits[second]), abs=1e-4)
    assert compare_greedy(TARGET.lean, prompt, [best, 0], [best, 0]).compared == 2


def test_a_text_that_ends_too_early_is_different() -> None:
    check = compare_greedy(TARGET.lean, [0, 1, 2], [3, 4, 5], [3, 4])
    assert (check.verdict, check.position) == ("different", 2)


def test_a_near_tie_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [0, 1, 2]
    best, second = TARGET.lean.runner(8).forward(prompt)[-1].topk(2).indices.tolist()
    monkeypatch.setattr(TARGET.lean.model, "logits", _with_tie(TARGET.lean.model.logits, best, second))
    assert compare_greedy(TARGET.lean, prompt, [best], [second]).verdict == "near_tie"
    third = next(i for i in range(8) if i not in (best, second))
    assert compare_greedy(TARGET.lean, prompt, [best], [third]).verdict == "different"


def _with_tie(right, best: int, second: int):
    def logits(hidden: torch.Tensor) -> torch.Tensor:
        rows = right(hidden).clone()
        rows[..., second] = rows[..., best] - 1e-4
        return rows

    return logits


def test_a_planted_decoding_bug_shows_as_different(monkeypatch: pytest.MonkeyPatch) -> None:
    import specdemo.decoding.recording as module

    right = module.verify
    monkeypatch.setattr(module, "verify", lambda p, *rest: right(torch.cat([p[:1], p[:-1]]), *rest))
    perfect = replace(tiny_pair(), draft=TARGET.lean)  # its second draft is right, so the shifted rows refuse it
    assert run(perfect, settings())[-1].check.verdict == "different"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"drafter": "crystal-ball"}, "no drafter 'crystal-ball'"),
        ({"prompt": "a " * 64}, "64 tokens, but tiny reads at most 64"),
    ],
)
def test_settings_that_the_pair_cannot_serve_are_refused(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(tiny_pair(), settings(**values))


def test_a_pair_without_kept_text_has_nothing_to_retrieve_from() -> None:
    with pytest.raises(UserError, match="Nobody has kept text"):
        run(tiny_pair(), settings(drafter="retrieval"))
    with_text = replace(tiny_pair(), store=STORE)
    assert run(with_text, settings(drafter="retrieval"))[-1].check.verdict == "identical"


def test_nobody_who_names_no_drafter_gets_a_slow_one() -> None:
    """The best that a pair has, live: on the default pair that is twice as fast as a draft model with a fixed gamma."""
    wanted = Settings.checked(prompt="a b c a b c", pair="tiny")
    assert wanted.auto_gamma
    for pair, name in ((tiny_pair(), "combined"), (tiny_pair(draft=False), "prompt-lookup")):
        assert run(pair, wanted)[0].trace.settings.drafter == name
    assert best_drafter({"draft", "store", "layers", "trees", "eagle", "medusa"}) == "combined-eagle"
    assert best_drafter({"draft", "eagle"}) == "combined"  # a target that cannot verify trees


def test_a_best_drafter_in_both_lanes_is_two_of_them() -> None:
    trace = run(tiny_pair(), settings(drafter="best", rival="best"))[0].trace
    assert trace.settings.drafter == trace.settings.rival == "combined"


def test_whoever_names_a_gamma_gets_that_one() -> None:
    assert not Settings.checked(prompt="a", gamma=3).auto_gamma
    assert Settings.checked(prompt="a", gamma=3, auto_gamma=True).auto_gamma


def test_a_pair_without_a_draft_still_runs_lookup() -> None:
    with pytest.raises(UserError, match="no draft model"):
        run(tiny_pair(draft=False), settings())
    assert run(tiny_pair(draft=False), settings(drafter="prompt-lookup"))[-1].check.verdict == "identical"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": " \n\t"}, "prompt is empty"),
        ({"max_tokens": 0}, "Max tokens is 0"),
        ({"gamma": 17}, "Gamma is 17"),
        ({"temperature": float("nan")}, "Temperature"),
        ({"top_p": 0}, "Top p is 0"),
        ({"mode": "sideways"}, "Mode is 'sideways'"),
        ({"seed": "x"}, "Seed is 'x'"),
    ],
)
def test_bad_settings_are_refused_in_words(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**values)


@pytest.mark.parametrize("family", ["gemma3", "bloom", "gpt2"])
def test_trees_are_verified_only_where_an_architecture_lets_its_mask_be_given(family: str) -> None:
    """A window's own mask, and ALiBi's, would be replaced or refused: such a target says so instead of being wrong."""
    size = {"vocab_size": 16, "hidden_size": 16, "num_attention_heads": 2}
    layers = {"num_hidden_layers": 2, "max_position_embeddings": 64}
    config = {
        "gemma3": lambda: Gemma3TextConfig(
            **size, **layers, intermediate_size=32, num_key_value_heads=1, head_dim=8, sliding_window=8
        ),
        "bloom": lambda: BloomConfig(vocab_size=16, hidden_size=16, n_layer=2, n_head=2),
        "gpt2": lambda: GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, n_positions=64),
    }[family]()
    torch.manual_seed(0)
    target = TransformersLanguageModel(AutoModelForCausalLM.from_config(config).eval(), TARGET.lean.info, 16)
    assert target.takes_trees == (family == "gpt2")
    loaded = replace(tiny_pair(), target=target, heads=heads_for(target))
    if family == "gpt2":
        assert run(loaded, settings(drafter="medusa"))[-1].check.verdict == "identical"
        return
    with pytest.raises(UserError, match="cannot verify trees"):
        run(loaded, settings(drafter="medusa"))
