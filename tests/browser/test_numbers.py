"""A number is written in one way, wherever it stands: the page's formatter and the verdict's agree to the digit."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdemo.metrics import fixed
from specdemo.ui import format as python

pytestmark = pytest.mark.browser

WRITERS = ("rate", "ratio", "percent", "milliseconds")
# Ties in binary (3.125), what looks like one and is none (1.005), and all between.
ties = st.builds(lambda n, k: n / 2**k, st.integers(0, 10**6), st.integers(1, 8))
decimals = st.builds(lambda n, k: n / 10**k, st.integers(0, 10**6), st.integers(1, 6))
values = st.lists(ties | decimals | st.floats(0, 1) | st.floats(0, 1e9), min_size=50, max_size=200)


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005


@pytest.fixture
def visitor(scripted, visit):
    return visit(scripted)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values)
def test_python_and_the_page_write_every_number_alike(visitor, values):
    written = visitor.page.evaluate(
        """async ([names, values]) => {
            const format = await import(new URL('./page-files/js/format.js', document.baseURI).href);
            return [...names.map((name) => values.map(format[name])), values.map((value) => value.toFixed(3))];
        }""",
        [WRITERS, values],
    )
    for name, texts in zip(WRITERS, written, strict=False):
        assert texts == [getattr(python, name)(value) for value in values], name
    assert written[-1] == [fixed(value, 3) for value in values]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?(?:×|\xa0%|\xa0m?s)?", text))


def charted(page, name: str) -> dict[str, str]:
    """What the newest point of each line of a chart says when it is pointed at."""
    page.locator(f"#sd-chart-{name}").scroll_into_view_if_needed()
    chart = f"document.getElementById('sd-chart-{name}')"
    page.wait_for_function(
        f"{chart}.data?.some((line) => line.customdata.length) && !specdemo.page.charts.waiting.length"
    )
    return page.evaluate(f"Object.fromEntries({chart}.data.map((line) => [line.name, line.customdata.at(-1)]))")


def test_the_same_quantity_is_the_same_string_over_the_whole_page(scripted, visit):
    visitor = visit(scripted, "?rival=tree")
    page = visitor.page
    visitor.run()
    visitor.wait_phase("done")
    lanes = ("speculative", "rival")
    names = ("per_pass", "alpha", "expected_alpha")
    tile = {lane: {name: page.inner_text(f'.sd-{lane} [data-n="{name}"]') for name in names} for lane in lanes}
    factors = {page.inner_text(f".sd-{lane} .sd-versus b").rstrip("×") for lane in lanes}
    tokens = {page.inner_text(f".sd-{lane} .sd-versus small") for lane in lanes}
    for unit in ("×", " 倍"):
        verdict = page.inner_text("#sd-verdict-text")
        for lane in lanes:
            assert {tile[lane]["per_pass"], tile[lane]["alpha"]} <= numbers(verdict)
        assert all(f"{factor}{unit}" in verdict for factor in factors)
        page.click('[data-do="lang"]')
    assert set.union(*map(numbers, tokens)) <= numbers(verdict)
    charts = charted(page, "alpha") | charted(page, "round")
    for line, lane, name in (
        ("α so far", "speculative", "alpha"),
        ("expected α", "speculative", "expected_alpha"),
        ("rival α", "rival", "alpha"),
        ("mean", "speculative", "per_pass"),
        ("rival mean", "rival", "per_pass"),
    ):
        assert charts[line] == tile[lane][name], line


def test_the_big_number_and_the_verdict_say_the_same_of_two_lanes(visitor):
    visitor.run()
    visitor.wait_phase("done")
    said = numbers(visitor.page.inner_text("#sd-verdict-text"))
    assert visitor.page.inner_text("#sd-speedup") in said
    assert numbers(visitor.page.inner_text("#sd-speedup-over")) <= said


@pytest.mark.parametrize("query", ["", "?drafter=tree", "?drafter=drawn", "?drafter=tree&acceptance=typical"])
def test_a_token_has_the_same_numbers_in_card_lists_and_tree(scripted, visit, query):
    visitor = visit(scripted, query)
    page = visitor.page
    visitor.run()
    visitor.wait_phase("done")
    page.evaluate("specdemo.page.tree.open(specdemo.page.byLane.speculative.findIndex((r) => r.tested > r.accepted))")
    page.set_viewport_size({"width": 1280, "height": 1600})
    nodes = page.locator("#sd-tree-view .sd-node:has(.tok[data-key].rejected)")
    for node in (nodes.first, nodes.last):
        node.locator(".tok").hover()
        page.wait_for_selector("#sd-card .sd-lists li")
        told = dict(pair.split("\n") for pair in page.locator("#sd-card dl > div").all_inner_texts())
        small = node.locator("small").text_content() if node.locator("small").count() else ""
        for name, value in re.findall(r"\b([pqu]) (\S+)", small):
            assert told["u (drawn)" if name == "u" else name] == value, small
        for name in {"p", "q"} & told.keys():
            own = page.locator(f'#sd-card ol[data-label="{name}"] .own')
            assert own.evaluate("(item) => item.lastChild.data") == told[name]


def test_the_lists_of_a_card_have_as_many_digits_as_its_figures(visitor):
    """Where u and the acceptance probability differ late, all numbers of the card are written longer."""
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.evaluate(
        """() => {
            const rounds = specdemo.page.byLane.speculative.flatMap((round) => round.tokens);
            const token = rounds.find((token) => token.outcome === 'rejected');
            token.u = token.accept + 4e-6;
        }"""
    )
    visitor.page.hover(".sd-speculative .sd-text .tok.rejected >> nth=0")
    visitor.page.wait_for_selector("#sd-card .sd-lists li")
    told = dict(pair.split("\n") for pair in visitor.page.locator("#sd-card dl > div").all_inner_texts())
    assert told["u (drawn)"] != told["min(1, p/q)"]
    for name in ("p", "q"):
        first = visitor.page.locator(f'#sd-card ol[data-label="{name}"] li').first
        assert first.evaluate("(item) => item.lastChild.data") == told[name]


def test_a_chart_hovered_shows_numbers_as_the_tiles_do(scripted, visitor):
    visitor.run()
    visitor.wait_phase("done")
    plot = visitor.page.locator("#sd-chart-alpha .nsewdrag")
    plot.scroll_into_view_if_needed()
    plot.hover()
    visitor.page.wait_for_selector("#sd-chart-alpha .hoverlayer text")
    said = visitor.page.locator("#sd-chart-alpha .hoverlayer").text_content()
    assert re.search(r"α so far : \d+\xa0%", said), said


def test_numbers_reach_the_page_unrounded(scripted, visitor):
    visitor.run()
    visitor.wait_phase("done")
    tokens = visitor.page.evaluate(
        "specdemo.page.byLane.speculative.flatMap((round) => round.tokens).filter((token) => token.u != null)"
    )
    for token in tokens:
        assert token["accept"] == min(1, token["p"] / token["q"])


def test_every_line_of_the_alpha_chart_is_named_and_expected_alpha_at_temperature_0_explained(visitor):
    visitor.page.wait_for_selector("#sd-chart-alpha .main-svg")
    chart = "document.getElementById('sd-chart-alpha')"
    assert visitor.page.evaluate(f"{chart}.layout.shapes ?? []") == []
    assert all(visitor.page.evaluate(f"{chart}.data.map((line) => line.name)"))
    for words in ("at T = 0 expected α lies on α", "T = 0 では期待 α は α に重なる"):
        assert words in visitor.page.inner_text("figure:has(#sd-chart-alpha) figcaption")
        hint = visitor.page.get_attribute('.sd-speculative .sd-num[data-hint="expected_alpha_hint"]', "title")
        assert "0" in hint
        visitor.page.click('[data-do="lang"]')
