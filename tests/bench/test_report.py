"""A benchmark's numbers, from runs whose answers are known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from specdemo.bench.page import to_html
from specdemo.bench.report import ALL, MARK, Figures, Report, Row, decode_rate, figures, overall
from specdemo.bench.runs import Disturbed
from specdemo.bench.tables import speedup_table, tables
from specdemo.events import Machine, ModelInfo
from specdemo.metrics import LaneMetrics
from specdemo.models.costs import Costs
from tests.test_metrics import a_round


def plain(step: float, tokens: int = 11) -> LaneMetrics:
    """One token a step."""
    bursts = [(1 + step * (i + 1), i + 1) for i in range(tokens)]
    return LaneMetrics(
        rounds=tokens,
        tokens=tokens,
        clock=bursts[-1][0],
        prefill_seconds=1,
        verify_seconds=step * tokens,
        bursts=bursts,
    )


def drafted() -> LaneMetrics:
    """Three rounds of gamma 4: 2, 4 and 0 accepted, 1.5 s each, of which 0.4 s drafting."""
    lane = LaneMetrics(clock=1.0, prefill_seconds=1.0)
    for event in (
        a_round(0, 0, accepted=2, gamma=4, clock=2.5, draft=0.4),
        a_round(1, 3, accepted=4, gamma=4, clock=4.0, draft=0.4),
        a_round(2, 8, accepted=0, gamma=4, clock=5.5, draft=0.4),
    ):
        lane.add(event)
    return lane


def test_rates_of_several_texts_are_those_of_all_their_tokens_together() -> None:
    assert decode_rate([[plain(0.5)]]) == pytest.approx(2)
    assert decode_rate([[plain(0.5, 101)], [plain(1.0, 101)]]) == pytest.approx(200 / 150)


def test_a_speedup_compares_the_same_repeat() -> None:
    """The machine was twice as slow in the second repeat: the speedup does not see it, the rates do."""
    found = figures([[(plain(0.25), plain(0.5)), (plain(0.5), plain(1.0))]])
    assert (found.speedup, found.speedup_low, found.speedup_high) == pytest.approx((2, 2, 2))
    assert (found.decode_rate_low, found.decode_rate_high) == pytest.approx((2, 4))
    assert found.ttft == pytest.approx((1.25 + 1.5) / 2)
    assert (found.gap_p50, found.gap_max) == pytest.approx((0.375, 0.5))
    assert found.alpha is None
    assert found.predicted is None


def test_acceptance_and_costs_are_those_of_the_formula() -> None:
    found = figures([[(drafted(), plain(1.0))]])
    assert found.alpha == pytest.approx(6 / 8)
    assert found.draft_acceptance == pytest.approx(6 / 12)
    assert found.expected_alpha == pytest.approx(1 - (6 * 0.2 + 2 * 0.8) / 8)
    assert found.tokens_per_pass == pytest.approx(9 / 3)
    assert found.end_to_end_rate == pytest.approx(9 / 5.5)
    assert found.tpot == pytest.approx(1 / found.decode_rate) == pytest.approx(3 / 6)
    assert found.gap_p50 == found.gap_p99 == found.gap_max == pytest.approx(1.5)
    assert found.c == pytest.approx(0.1)
    expected = (1 - 0.75**5) / 0.25
    assert found.predicted == pytest.approx(expected / (4 * found.c + found.v + found.o))


def test_a_text_of_one_burst_has_no_rate_and_spoils_nobody_elses() -> None:
    short = replace(plain(1.0, tokens=1), prefill_known=False)
    nothing = figures([[(short, short)]])
    assert nothing.decode_rate is None
    assert nothing.speedup is None
    assert Figures.model_validate_json(nothing.model_dump_json()) == nothing
    rows = [
        Row(contender="x", category="a", figures=nothing),
        Row(contender="x", category="b", figures=figures([[(plain(0.5), plain(1.0))]])),
    ]
    assert overall(rows).figures.speedup == pytest.approx(2)


def test_the_longest_gaps_are_ranked() -> None:
    gaps = [0.1] * 98 + [0.5, 2.0]
    bursts = [(sum(gaps[:i]), i + 1) for i in range(101)]
    run = LaneMetrics(rounds=101, tokens=101, clock=bursts[-1][0], verify_seconds=1.0, bursts=bursts)
    found = figures([[(run, run)]])
    assert (found.gap_p50, found.gap_p99, found.gap_max) == pytest.approx((0.1, 0.5, 2.0))


def test_the_last_row_counts_every_category_the_same() -> None:
    rows = [
        Row(contender="x", category=name, figures=figures([[(plain(step), plain(1.0))]]), texts={"identical": count})
        for name, step, count in (("a", 0.5, 3), ("b", 0.25, 1))
    ]
    mean = overall(rows)
    assert mean.category == ALL
    assert mean.figures.speedup == pytest.approx(3)
    assert mean.texts == {"identical": 4}


def test_texts_of_different_lengths_are_compared_over_the_tokens_that_both_have() -> None:
    """Rates say 4: the baseline went on where it was twice as slow. What both wrote took twice as long, not four times,
    and with a second of prefill for either less than that."""
    base = plain(1.0, 4)
    base.bursts += [(5 + 2 * (i + 1), 5 + i) for i in range(40)]
    base.tokens, base.clock = 44, base.bursts[-1][0]
    found = figures([[(plain(0.5, 4), base)]])
    assert found.speedup == pytest.approx(2)
    assert found.end_to_end_speedup == pytest.approx(5 / 3)


def test_one_repeat_that_stalled_moves_no_mean() -> None:
    """A baseline at a twentieth of its speed, once in three: means of rates or of ratios would say 7."""
    slow, usual, own = plain(20.0), plain(1.0), plain(0.5)
    found = figures([[(own, usual), (own, slow), (own, usual)], [(own, usual)] * 3])
    assert found.speedup == pytest.approx(2)
    assert found.speedup_high > 2


def test_half_as_fast_on_one_prompt_and_twice_as_fast_on_the_next_is_no_gain() -> None:
    found = figures([[(plain(2.0), plain(1.0))], [(plain(0.5), plain(1.0))]])
    assert found.speedup == pytest.approx(1)


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[2].glob("assets/bench-*.json")), ids=lambda f: f.stem)
def test_shipped_results_can_still_be_read(file: Path) -> None:
    kept = Report.model_validate_json(file.read_text(encoding="utf-8"))
    assert kept.complete
    assert kept.facts()
    assert to_html(kept)


@pytest.fixture
def report() -> Report:
    info = ModelInfo(name="tiny <b>", parameters=1000, dtype="fp32", sha256="ab" * 32)
    rows = []
    for name, drafter, run in (("baseline", "", plain(1.0)), ("drafter & co", "draft-model", drafted())):
        own = [
            Row(contender=name, category=category, figures=figures([[(run, plain(1.0))]]), drafter=drafter)
            for category in ("code", "maths")
        ]
        rows += [*own, overall(own)]
    return Report(
        created="2026-01-01T00:00:00+00:00",
        machine=Machine(device="cpu", processor="p", threads=2, python="3", packages={"torch": "2"}),
        commit="c",
        target=info,
        draft=None,
        settings={"temperature": 0.0},
        costs=Costs(c=0.1, v=(1.0, 1.1), o=0.05),
        prompts={"code": 1, "maths": 2},
        repeats=1,
        rows=rows,
    )


def test_a_report_goes_to_json_and_back(report: Report) -> None:
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_the_best_of_a_category_is_found(report: Report) -> None:
    assert report.best("code") == "drafter & co"
    assert report.drafters == ["drafter & co"]
    assert report.contenders == ["baseline", "drafter & co"]
    assert report.categories == ["code", "maths"]


def test_tables_name_everybody(report: Report) -> None:
    console = Console(record=True, width=200)
    for category in (*report.categories, ALL):
        console.print(*tables(report, category))
    console.print(speedup_table(report))
    shown = console.export_text()
    assert shown.count("drafter & co") == 7
    assert "code: 1 prompts" in shown
    assert "all: 3 prompts" in shown


def test_numbers_that_do_not_exist_are_dashes_and_no_bars(report: Report) -> None:
    empty = [row.model_copy(update={"figures": Figures()}) for row in report.rows]
    nothing = report.model_copy(update={"rows": empty})
    console = Console(record=True, width=200)
    console.print(*tables(nothing, "code"), speedup_table(nothing))
    shown = console.export_text() + to_html(nothing).split("<h2>")[1]
    assert "- (-)" in shown
    assert "nan" not in shown
    assert "None" not in shown


def test_disturbed_runs_and_unfinished_ones_are_named_wherever_figures_are(report: Report) -> None:
    one = {"contender": "drafter & co", "category": "code", "prompt": 2, "repeat": 0, "reason": "a pause of 3 s"}
    rows = [row.model_copy(update={"disturbed": row.category in ("code", ALL)}) for row in report.rows[3:]]
    runs = [Disturbed(**one, outcome="kept"), Disturbed(**one | {"prompt": 0}, outcome="again")]
    marked = report.model_copy(update={"rows": report.rows[:3] + rows, "disturbed": runs, "complete": False})
    assert Report.model_validate_json(marked.model_dump_json()) == marked
    console = Console(record=True, width=200)
    console.print(*tables(marked, "code"), *tables(marked, "maths"), speedup_table(marked))
    shown = console.export_text()
    assert shown.count(f"drafter & co {MARK}") == 2  # in both tables of code, in none of maths
    assert shown.count(f"{MARK} (3.00)") == 2  # code and mean
    for text in ("\n".join(marked.facts()), to_html(marked)):
        assert "INCOMPLETE" in text
        assert "code, prompt 3, repeat 1: a pause of 3 s" in text
        assert "prompt 1, repeat 1" not in text


def test_the_page_needs_nothing_else_and_shows_names_as_text(report: Report) -> None:
    page = to_html(report)
    assert "Plotly.newPlot" in page
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', page)
    assert "tiny &lt;b&gt;" in page
    assert "drafter &amp; co" in page
