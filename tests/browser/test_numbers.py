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
            const format = await import(new URL('./specdemo/js/format.js', document.baseURI).href);
            return [...names.map((name) => values.map(format[name])), values.map((value) => value.toFixed(3))];
        }""",
        [WRITERS, values],
    )
    for name, texts in zip(WRITERS, written, strict=False):
        assert texts == [getattr(python, name)(value) for value in values], name
    assert written[-1] == [fixed(value, 3) for value in values]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?(?:×|\xa0%|\xa0m?s)?", text))


def test_tiles_verdict_and_charts_say_the_same_of_a_run(scripted, visitor):
    visitor.run()
    visitor.wait_phase("done")
    tile = {
        name: visitor.page.inner_text(f'.sd-speculative [data-n="{name}"]')
        for name in ("per_pass", "alpha", "expected_alpha")
    }
    verdict = visitor.page.inner_text("#sd-verdict-text")
    assert {tile["per_pass"], tile["alpha"], visitor.page.inner_text("#sd-speedup")} <= numbers(verdict)
    hovered = visitor.page.evaluate(
        """() => Object.fromEntries(['alpha', 'round'].flatMap((name) => document.getElementById(`sd-chart-${name}`)
            .data.map((line) => [line.name, line.customdata.at(-1)])))"""
    )
    assert hovered["α so far"] == tile["alpha"]
    assert hovered["expected α"] == tile["expected_alpha"]
    assert hovered["mean"] == tile["per_pass"]


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
