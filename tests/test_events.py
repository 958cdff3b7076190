"""Events and traces survive JSON, and foreign JSON is refused."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from specdemo.events import (
    Draft,
    End,
    Machine,
    ModelInfo,
    Prefill,
    RaceEnd,
    Round,
    Start,
    Token,
    Trace,
)
from specdemo.settings import Settings


def example_round() -> Round:
    return Round(
        round=0,
        start=0,
        drafted=[
            Token(id=1, text="a", outcome="accepted", position=0, p=0.9, q=0.8, accept=1.0, u=0.3, tv=0.1),
            Token(id=2, text="<b>", outcome="rejected", position=1, p=0.1, q=0.8, accept=0.125, u=0.5, tv=0.7),
            Token(id=3, text="🦜", outcome="discarded", position=2, q=0.5),
        ],
        final=Token(id=4, text="日", outcome="resampled", position=1, p=0.6),
        draft_seconds=0.01,
        verify_seconds=0.05,
        overhead_seconds=0.001,
        clock=0.2,
    )


def example_trace() -> Trace:
    return Trace(
        created="2026-01-01T00:00:00+00:00",
        settings=Settings(prompt="Hi"),
        target=ModelInfo(name="t", parameters=1, dtype="fp32", sha256="00"),
        draft=None,
        machine=Machine(device="cpu", processor="x", threads=2, python="3.11", packages={"torch": "2"}),
        lanes={
            "speculative": [
                Start(prompt_tokens=3, drafter="draft-model", gamma=3),
                Prefill(done=2, total=2, clock=0.1),
                Draft(round=0, start=0, texts=["a", "<b>", "🦜"], clock=0.11),
                example_round(),
                End(reason="stopped", tokens=2, clock=0.2),
            ]
        },
    )


def test_a_trace_survives_json() -> None:
    trace = example_trace()
    assert Trace.from_json(trace.to_json()) == trace


def test_a_round_that_ended_the_text_itself_survives_json() -> None:
    """An end of text among the accepted drafts leaves no place for a token of the target's own."""
    trace = example_trace()
    ended = example_round().model_copy(update={"final": None})
    trace.lanes["speculative"].insert(-1, ended)
    assert Trace.from_json(trace.to_json()) == trace


def test_a_trace_gives_its_text_without_what_was_refused() -> None:
    assert example_trace().text("speculative") == "a日"


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 99},
        {"unknown": 1},
        {"lanes": {"speculative": [{"type": "nonsense"}]}},
        {"settings": {"prompt": "x", "gamma": 99}},
    ],
)
def test_json_of_another_schema_is_refused(change: dict) -> None:
    data = json.loads(example_trace().to_json()) | change
    with pytest.raises(ValidationError):
        Trace.from_json(json.dumps(data))


def test_a_round_counts_tested_accepted_and_emitted() -> None:
    round_ = example_round()
    assert (round_.tested, round_.accepted, [t.id for t in round_.emitted]) == (2, 1, [1, 4])


def tree_round() -> Round:
    """Two drafts behind the text, the second one accepted; two behind that, both refused; one behind the first."""
    fates = [
        ("a", "rejected", 5),
        ("b", "accepted", 5),
        ("c", "discarded", 6),
        ("d", "rejected", 6),
        ("e", "rejected", 6),
    ]
    return Round(
        round=3,
        start=5,
        drafted=[Token(id=i, text=text, outcome=fate, position=at) for i, (text, fate, at) in enumerate(fates)],
        final=Token(id=9, text="z", outcome="resampled", position=6),
        parents=[-1, -1, 0, 1, 1],
        draft_seconds=0.01,
        verify_seconds=0.05,
        overhead_seconds=0.001,
        clock=0.2,
    )


def test_a_line_of_text_shows_of_a_tree_what_it_gained_and_the_first_refusal_where_the_target_chose() -> None:
    assert "".join(token.text for token in tree_round().in_line) == "bdz"
    assert [token.text for token in example_round().in_line] == ["a", "<b>", "🦜", "日"]
    bonus = tree_round().model_copy(update={"final": Token(id=9, text="z", outcome="bonus", position=7)})
    assert "".join(token.text for token in bonus.in_line) == "bz"


def test_a_round_knows_how_deep_it_drafted() -> None:
    assert (tree_round().depth, example_round().depth) == (2, 3)


def test_a_trace_from_before_rivals_and_trees_still_loads() -> None:
    data = json.loads(example_trace().to_json())
    del data["settings"]["rival"]
    assert "parents" not in data["lanes"]["speculative"][2]
    assert "lane" not in data["check"]
    assert Trace.from_json(json.dumps(data)) == example_trace()


def test_a_race_end_defaults_nothing() -> None:
    with pytest.raises(ValidationError):
        RaceEnd()
