"""Benchmarks run on tiny models: who runs when, and that what is compared is the same thing."""

from __future__ import annotations

import io
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from specdemo.bench import roofline as roof
from specdemo.bench import synthetic
from specdemo.bench.batches import Batches
from specdemo.bench.contenders import NEVER, OnThePage, Ours, Written, speculative
from specdemo.bench.peers import WideDraft, peers
from specdemo.bench.plan import Plan
from specdemo.bench.report import Report
from specdemo.bench.suite import Suite
from specdemo.bench.surroundings import commit
from specdemo.cli import app
from specdemo.errors import UserError
from specdemo.longwork import Work
from specdemo.metrics import LaneMetrics
from specdemo.models.loading import LoadedPair
from specdemo.settings import MAX_NODES, Settings
from tests.test_loading import load, save_model
from tests.test_race import tiny_pair
from tests.tiny import Tiny

PROMPTS = [("code", "a b c a b"), ("code", "c c a"), ("maths", "h g f h g")]
SETTINGS = {"max_tokens": 12, "chat": False}


class Noted:
    """A contender that only notes its turns."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns = name, turns

    def write(self, settings: Settings, stop: threading.Event = NEVER) -> Written:
        self.turns.append(f"{self.name}:{settings.prompt}")
        bursts = [(0.1 * (i + 1), i + 1) for i in range(4)]
        metrics = LaneMetrics(rounds=4, tokens=4, clock=0.4, verify_seconds=0.4, bursts=bursts)
        return Written([1, 2, 3, 4], metrics)


def suite(contenders: list, prompts=PROMPTS, repeats: int = 2, **settings) -> Suite:
    return Suite(tiny_pair(), contenders, prompts, SETTINGS | settings, repeats)


def steadily(suite: Suite) -> Suite:
    """With clocks on which nothing is ever disturbed."""
    return replace(suite, wall=itertools.count().__next__, processor=itertools.count().__next__, machine=lambda: None)


def run(suite: Suite) -> Report:
    suite.run()
    return suite.report()


def test_contenders_take_turns_on_every_prompt() -> None:
    turns: list[str] = []
    steadily(suite([Noted("A", turns), Noted("B", turns)])).run()
    warm_up, timed = turns[:2], turns[2:]
    assert [turn[0] for turn in warm_up] == ["A", "B"]
    expected = [f"{name}:{prompt}" for _, prompt in PROMPTS for name in "AB"]
    assert timed == expected * 2


def test_our_lanes_are_compared_and_their_texts_checked() -> None:
    loaded = tiny_pair()
    ours = [Ours("baseline", loaded), *(speculative(loaded, name, 3) for name in ("draft-model", "prompt-lookup"))]
    report = run(suite(ours))
    assert report.contenders == ["baseline", "draft-model, gamma 3", "prompt-lookup, gamma 3"]
    assert report.row("baseline").figures.speedup == 1
    row = report.row("draft-model, gamma 3")
    assert sum(row.texts.values()) == len(PROMPTS)
    assert row.texts.get("different", 0) == 0
    assert row.figures.tokens_per_pass >= 1
    assert report.roofline.bytes_per_token > 0
    assert report.prompts == {"code": 2, "maths": 1}


def test_lanes_on_the_page_write_what_they_write_alone() -> None:
    loaded = tiny_pair()
    rival = speculative(loaded, "draft-model", 3)
    settings = Settings.checked(prompt="a b c a b", **SETTINGS)
    for name, lane, alone in (("b", "baseline", Ours("baseline", loaded)), ("s", "speculative", rival)):
        shown = OnThePage(name, lane, rival).write(settings)
        assert shown.ids == alone.write(settings).ids
        assert shown.metrics.rounds == alone.write(settings).metrics.rounds


def test_a_text_that_differs_is_counted_as_different() -> None:
    turns: list[str] = []
    wrong = Noted("B", turns)
    right = Noted("A", turns)
    wrong.write = lambda settings, stop: Written([4, 4, 4, 4], Noted("B", []).write(settings).metrics)
    report = run(suite([right, wrong], repeats=1))
    texts = report.row("B").texts
    assert texts.get("identical", 0) == 0
    assert sum(texts.values()) == 3


def test_above_temperature_zero_texts_are_not_compared() -> None:
    loaded = tiny_pair()
    report = run(suite([Ours("baseline", loaded), speculative(loaded, "draft-model", 3)], temperature=0.8))
    assert report.row("draft-model, gamma 3").texts == {}


def plan(prompts=PROMPTS, **more) -> Plan:
    usual = {"drafters": ["draft-model"], "gammas": [2], "confidences": [0.0], "settings": SETTINGS}
    return Plan(prompts=prompts, **usual | more)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"drafters": ["x"]}, "no drafter 'x'"),
        ({"gammas": [0]}, "Gamma is 0"),
        ({"gammas": [99]}, "Gamma is 99"),
        ({"confidences": [2.0]}, "Confidence is 2"),
        ({"settings": {"temperature": -1}}, "Temperature is -1"),
        ({"batch": 2}, "maths has 1 prompts"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_runs(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(**values)


def test_a_batch_is_refused_where_the_models_cannot_do_it() -> None:
    out = Console(file=io.StringIO())
    work = Work(out)
    with pytest.raises(UserError, match="needs a draft model"):
        plan(PROMPTS[:2], batch=2).run(tiny_pair(draft=False), work)
    through = replace(tiny_pair(), target=Tiny(8, seed=1).transformers)
    with pytest.raises(UserError, match="one text at a time"):
        plan(PROMPTS[:2], batch=2).run(through, work)
    assert not out.file.getvalue()


def test_a_pair_without_a_draft_is_benchmarked_with_what_it_can_use() -> None:
    report = plan(drafters=[]).run(tiny_pair(draft=False), Work())
    assert report.contenders == ["baseline", "prompt-lookup, gamma 2", "early-exit, gamma 2"]


def test_a_plan_runs_its_batches_and_knows_its_prompts() -> None:
    report = plan(PROMPTS[:2], batch=2).run(tiny_pair(), Work())
    (row,) = report.batches
    assert (row.category, row.batch, row.gamma) == ("code", 2, 2)
    assert row.speedup == pytest.approx(row.speculative_rate / row.plain_rate)
    assert len(report.prompts_sha256) == 64
    assert report.prompts_sha256 != plan(PROMPTS[1:2]).fingerprint()


def test_a_batch_counts_tokens_by_pass_and_row() -> None:
    """A draft equal to the target: every row gains gamma + 1 tokens a pass."""
    perfect = replace(tiny_pair(), draft=tiny_pair().target)
    batches = Batches(perfect, PROMPTS[:2], SETTINGS, batch=2, gamma=2, repeats=1)
    batches.run()
    (row,) = batches.rows()
    assert row.tokens_per_pass == pytest.approx(3)
    assert row.alpha == 1


def test_the_commit_is_recorded_where_there_is_one() -> None:
    assert commit() == "" or len(commit().rstrip("+")) == 40


# --- Peers ---


def test_transformers_writes_the_same_greedy_texts(tmp_path: Path) -> None:
    loaded = load(save_model(tmp_path / "target"), save_model(tmp_path / "draft", seed=2))
    settings = Settings.checked(prompt="a b c a b", chat=False, max_tokens=12)
    ours = Ours("baseline", loaded).write(settings)
    found = peers(loaded, gamma=3)
    assert [peer.name for peer in found] == [
        "transformers.generate",
        "transformers, assisted, gamma 3",
        "transformers, assisted, its defaults",
        "transformers, prompt lookup",
    ]
    for peer in found:
        written = peer.write(settings)
        assert written.ids == ours.ids
        assert written.metrics.tokens == len(written.ids)
        assert written.metrics.rounds <= len(written.ids)


def test_a_draft_of_a_reduced_vocabulary_is_the_same_draft_for_transformers(default_pair: LoadedPair) -> None:
    found = peers(default_pair, gamma=4)
    wide = found[1].how["assistant_model"]
    assert isinstance(wide, WideDraft)
    ids = default_pair.tokens.encode("Write a loop that prints the numbers 1 to 3.", chat=True)
    with torch.inference_mode():
        theirs = wide(torch.tensor([ids])).logits[0]
    ours = default_pair.draft.runner(len(ids)).forward(ids)
    torch.testing.assert_close(theirs[:, default_pair.draft.vocab_ids], ours, atol=1e-3, rtol=1e-3)
    outside = torch.ones(theirs.shape[1], dtype=torch.bool)
    outside[default_pair.draft.vocab_ids] = False
    assert (theirs[:, outside] == -torch.inf).all()
    settings = Settings.checked(prompt="Count to five.", max_tokens=16)
    plain = Ours("baseline", default_pair).write(settings)
    assisted = found[1].write(settings)
    assert assisted.ids == plain.ids
    assert assisted.metrics.rounds < plain.metrics.rounds


# --- Roofline and synthetic speeds ---


def test_a_plain_step_reads_every_weight_and_the_cache(default_pair: LoadedPair) -> None:
    needed = roof.bytes_per_token(default_pair.target, context=100)
    info = default_pair.target.info
    assert needed == pytest.approx(4 * info.parameters + 4 * 2 * 30 * 3 * 64 * 100)
    assert 1e9 < roof.measure_bandwidth(torch.device("cpu"), size=1 << 26) < 1e12


def test_synthetic_speeds_come_from_the_real_code_on_random_weights() -> None:
    found = synthetic.run("tiny", torch.device("cpu"), torch.float32, tokens=24)
    assert found.synthetic
    assert set(found.passes) == set(range(1, 10))
    assert found.passes[1] == 1
    assert 1.5 < found.tokens_per_pass <= 5
    assert found.speedup > 0
    assert synthetic.Synthetic.model_validate_json(found.model_dump_json()) == found


# --- Commands ---


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    return f"{result.exit_code} {result.output}"


def test_bench_leaves_a_table_a_file_and_a_page(tmp_path: Path) -> None:
    target, draft = save_model(tmp_path / "t"), save_model(tmp_path / "d", seed=2)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "code", "prompt": "a b c"}\n{"category": "maths", "prompt": "c d"}\n')
    common = ["--target", str(target), "--draft", str(draft), "--prompts", str(file), "--device", "cpu"]
    shown = invoke(
        "bench",
        *common,
        *("--max-tokens", "8", "--repeats", "1", "--gamma", "2", "--gamma", "auto", "--drafter", "draft-model"),
        *("--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.html"), "--peers"),
    )
    assert shown.startswith("0 "), shown
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert len(report.costs.v) == MAX_NODES + 1
    assert report.steps["draft"] > 0
    assert report.contenders[:3] == ["baseline", "draft-model, gamma 2, stop 0.2", "draft-model, gamma auto, stop 0.2"]
    assert "Plotly" in (tmp_path / "r.html").read_text()
    assert "Best in maths" in shown
    tuned = invoke("tune", *common, "--max-tokens", "6", "--categories", "code", "--work", str(tmp_path / "w.jsonl"))
    assert tuned.startswith("0 "), tuned
    assert "Recommended:" in tuned


def test_bench_synthetic_needs_no_model() -> None:
    shown = invoke("bench", "--synthetic", "--size", "tiny", "--device", "cpu")
    assert shown.startswith("0 "), shown
    assert "SYNTHETIC: random tiny" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--categories", "cooking"], "no category cooking"),
        (["bench", "--gamma", "many"], "Gamma is 'many'"),
        (["bench", "--json", "/nowhere/r.json"], "no folder /nowhere"),
        (["run", "hello", "--trace", "/nowhere/r.json"], "no folder /nowhere"),
        (["run", "hello", "--prompts", "x.jsonl"], "not both"),
        (["bench", "--prompts", "nowhere.jsonl"], "cannot be read"),
        (["bench", "--synthetic", "--size", "9t"], "no size '9t'"),
        (["bench", "--pair", "nothing"], "no pair 'nothing'"),
        (["bench", "--pair", "smollm2-135m", "--target", "x"], "not both"),
        (["tune", "--categories", "cooking"], "no category cooking"),
    ],
)
def test_mistakes_end_a_command_with_a_sentence(arguments: list[str], message: str) -> None:
    shown = " ".join(invoke(*arguments).split())
    assert shown.startswith("2 "), shown
    assert message in shown
