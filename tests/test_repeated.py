"""Races run again by their traces."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdemo.cli import app
from specdemo.errors import UserError
from specdemo.events import End, Trace
from specdemo.race import race
from specdemo.repeated import compared, pair_of, read_trace
from tests.test_loading import save_model
from tests.test_race import settings, tiny_pair


def raced(**changes: object) -> Trace:
    return Trace.of(race(tiny_pair(), settings(**changes), threading.Event()))


def test_the_command_says_whether_every_lane_wrote_the_same(tmp_path: Path) -> None:
    target, draft, file = save_model(tmp_path / "t"), save_model(tmp_path / "d", seed=2), tmp_path / "trace.json"
    own = ["--target", str(target), "--draft", str(draft), "--device", "cpu"]
    first = CliRunner().invoke(app, ["run", "a b", *own, "--temperature", "0.9", "--trace", str(file)])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, ["repeat", str(file), *own])
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    assert "Every lane wrote the text of the trace again." in again.stderr
    others = ["--target", str(draft), "--draft", str(target), "--device", "cpu"]
    other = CliRunner().invoke(app, ["repeat", str(file), *others])
    assert other.exit_code == 1, other.output
    assert "What is not the trace's own: target, draft." in other.stderr
    nobodys = CliRunner().invoke(app, ["repeat", str(file)])
    assert nobodys.exit_code == 2, nobodys.output
    assert "no pair names (t, d)" in nobodys.stderr


def test_costs_come_from_the_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By what drafting costs where it is run again, nothing would be drafted at all."""
    cheap = tiny_pair()
    dear = replace(cheap, costs=replace(cheap.costs, v=tuple(9.0 * k for k in range(1, 66))), steps={}, reads={})
    then = Trace.of(race(cheap, settings(auto_gamma=True, temperature=1.0, max_tokens=30), threading.Event()))
    file = tmp_path / "trace.json"
    file.write_text(then.to_json())
    monkeypatch.setattr("specdemo.models.loading.load_pair", lambda *_: dear)
    done = CliRunner().invoke(app, ["repeat", str(file), "--pair", "smollm2-135m"])
    assert done.exit_code == 0, done.output
    drafted = lambda trace: [len(r.drafted) for r in trace.rounds("speculative")]  # noqa: E731
    assert sum(drafted(then)) > 0
    assert sum(drafted(Trace.of(race(dear, then.settings, threading.Event())))) < sum(drafted(then))


def test_where_texts_part_is_named() -> None:
    then, now = raced(seed=1, temperature=1.0), raced(seed=2, temperature=1.0)
    assert compared(then, then) == (True, "Every lane wrote the text of the trace again.")
    same, told = compared(then, now)
    assert not same
    assert "baseline from token" in told
    assert "speculative from token" in told


def test_of_a_lane_that_was_stopped_only_what_it_wrote_is_compared() -> None:
    whole = raced()
    events = whole.lanes["speculative"][:3]
    stopped = whole.model_copy(update={"lanes": {"speculative": [*events, End(reason="stopped", tokens=1, clock=1.0)]}})
    cut_down = whole.model_copy(update={"lanes": {"speculative": [*events, whole.lanes["speculative"][-1]]}})
    assert compared(stopped, whole)[0]
    assert not compared(cut_down, whole)[0]
    assert not compared(whole, stopped)[0]


def test_a_trace_knows_its_pair() -> None:
    trace = raced()
    assert pair_of(trace) == trace.settings.pair == tiny_pair().pair.id


def _with_costs(**changes: object) -> dict:
    costs = {"c": 0.1, "v": [1.0] * 65, "o": 0.0, "step": 0.01, "read": 0.0}
    return {"costs": {"speculative": costs | changes}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (_with_costs(v=[]), "is no trace"),
        (_with_costs(v=[1.0, -1.0]), "is no trace"),
        (_with_costs(v=[0.0] * 65), "is no trace"),
        (_with_costs(c=-5.0), "is no trace"),
        (_with_costs(o="NaN"), "is no trace"),
        ({"lanes": {}}, "nothing to compare"),
        ({"lanes": {"speculative": []}}, "nothing to compare"),
        ({"settings": settings().model_dump() | {"prompt": " "}}, "prompt is empty"),
    ],
)
def test_a_trace_that_cannot_be_run_again_is_refused(tmp_path: Path, changes: dict, why: str) -> None:
    content, file = json.loads(raced().to_json()), tmp_path / "trace.json"
    file.write_text("\ufeff" + json.dumps(content | _with_costs()), encoding="utf-8")
    assert read_trace(file).costs["speculative"].c == 0.1
    file.write_text(json.dumps(content | changes))
    with pytest.raises(UserError, match=why):
        read_trace(file)


def test_costs_of_this_machine_are_named_where_the_trace_has_none() -> None:
    then = raced(seed=1, temperature=1.0, auto_gamma=True).model_copy(update={"costs": {}})
    assert compared(then, raced(seed=2, temperature=1.0, auto_gamma=True))[1].endswith("own: costs.")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"category": "a", "prompt": "b"}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match="is no trace"):
        read_trace(tmp_path / "x.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "missing.json")
