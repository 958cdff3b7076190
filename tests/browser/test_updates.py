"""What an update costs does not grow with the run: only what changed is laid out, only what is seen is drawn."""

from __future__ import annotations

import pytest

from tests.browser.conftest import DESKTOP

pytestmark = pytest.mark.browser

POINTS = "(name) => document.getElementById(`sd-chart-${name}`).data[0].x.length"


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.002


def test_an_update_touches_the_paragraph_that_grows_and_no_other(scripted, visit):
    visitor = visit(scripted)
    visitor.run(max_tokens="1200")
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 400")
    # Written meanwhile: outside the last paragraph nothing is added or removed.
    visitor.page.evaluate(
        """() => {
            const box = document.querySelector('.sd-speculative .sd-text');
            window.old = [...box.children].slice(0, -1);
            window.changes = 0;
            const watch = new MutationObserver((changes) => (window.changes += changes.length));
            window.old.forEach((paragraph) => watch.observe(paragraph, {childList: true, subtree: true}));
        }"""
    )
    visitor.wait_phase("done")
    assert visitor.page.evaluate("changes") == 0
    shape = visitor.page.evaluate(
        """() => [...document.querySelectorAll('.sd-speculative .sd-text > *')].map((paragraph) => ({
            block: getComputedStyle(paragraph).display === 'block',
            text: [...paragraph.querySelectorAll('.tok:not(.dropped)')].map((token) => token.textContent).join(''),
        }))"""
    )
    assert len(shape) > 20
    assert all(paragraph["block"] for paragraph in shape)
    assert all(paragraph["text"].endswith("\n") for paragraph in shape[:-1])
    assert (
        visitor.text("speculative")
        == visitor.text("baseline")
        == visitor.page.evaluate("specdemo.page.lanes.speculative.text")
    )


def test_a_round_that_ends_a_paragraph_is_still_one_round(scripted, visit):
    visitor = visit(scripted)
    visitor.run("echo one two\n\nthree four\n\nfive six\n\nseven eight\n\nnine ten\n\neleven twelve")
    visitor.wait_phase("done")
    rests = visitor.page.locator(".sd-speculative .round.rest")
    assert rests.count() > 0
    key = rests.first.get_attribute("data-round")
    parts = visitor.page.locator(f'.sd-speculative .round[data-round="{key}"]')
    assert parts.count() == 2
    assert parts.first.evaluate("node => getComputedStyle(node).boxShadow") != "none"  # the line where a round begins
    assert rests.first.evaluate("node => getComputedStyle(node).boxShadow") == "none"
    rests.first.locator(".tok").first.hover()
    assert [parts.nth(i).get_attribute("class").split()[-1] for i in range(2)] == ["lit", "lit"]


def test_charts_are_drawn_while_they_are_seen_and_at_the_end_all_of_them(scripted, visit):
    visitor = visit(scripted, viewport={**DESKTOP, "height": 500})
    visitor.page.wait_for_selector("#sd-chart-round .main-svg", state="attached")
    visitor.run(max_tokens="400")
    visitor.page.evaluate("scrollTo(0, 0)")
    visitor.page.wait_for_function("specdemo.page.charts.rounds.speculative.length > 60")
    assert visitor.page.evaluate(POINTS, "round") == 0
    visitor.page.locator("#sd-chart-round").scroll_into_view_if_needed()
    visitor.page.wait_for_function(f"({POINTS})('round') > 60")
    visitor.page.evaluate("scrollTo(0, 0)")
    visitor.wait_phase("done")
    rounds = visitor.page.evaluate("specdemo.page.charts.rounds.speculative.length")
    for name in ("alpha", "round"):
        visitor.page.wait_for_function(f"({POINTS})('{name}') === {rounds}")
