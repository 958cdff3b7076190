"""What became of a token is told by its colour and a second cue, and its letters stay readable, blanks included."""

from __future__ import annotations

import pytest

from tests.browser.conftest import CONTRAST

pytestmark = pytest.mark.browser

# Where tokens stand, and whether kept ones carry the look of the text (lanes) or of something apart from it.
LANE, CHIPS, NODES, LEGEND = ".sd-speculative .sd-text", "#sd-rows", "#sd-tree-view", ".sd-legend"
PLACES = (LANE, CHIPS, NODES, LEGEND)

# A token's look without its colour: frame, line, mark.
LOOK = """(node) => {
    const style = getComputedStyle(node);
    const mark = node.querySelector('.mark') ?? node.parentElement.querySelector(':scope > .tok + .mark');
    return {frame: parseFloat(style.borderTopWidth) ? style.borderTopStyle : 'none', line: style.textDecorationLine,
            mark: mark && getComputedStyle(mark, '::before').content};
}"""


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005


@pytest.fixture
def visitor(scripted, visit):
    visitor = visit(scripted)
    visitor.run("echo a = b. c == d.   e   f. g = h. i\n    j = k. l == m. n = o.   ")
    visitor.wait_phase("done")
    return visitor


def test_no_line_runs_through_a_refused_draft_and_its_marks_are_the_same_everywhere(visitor):
    rounds = "specdemo.page.byLane.speculative"
    visitor.page.evaluate(f"specdemo.page.tree.open({rounds}.findIndex((r) => r.tested < r.draftedCount))")
    marks = {}
    for outcome in ("rejected", "discarded"):
        looks = [visitor.page.locator(f"{place} .tok.{outcome}").first.evaluate(LOOK) for place in PLACES]
        assert all(look["line"] == "none" for look in looks)
        assert len({(look["frame"], look["mark"]) for look in looks}) == 1
        marks[outcome] = looks[0]
    assert marks["rejected"]["frame"] == "solid"
    assert marks["discarded"]["frame"] == "dotted"
    accepted = visitor.page.locator(f"{LANE} .tok.accepted").first.evaluate(LOOK)
    assert (accepted["frame"], accepted["line"]) == ("none", "underline")
    assert len({look["mark"] for look in (*marks.values(), accepted)}) == 3


@pytest.mark.parametrize("dark", [False, True])
def test_refused_drafts_have_enough_contrast_on_their_tint(scripted, visit, dark):
    visitor = visit(scripted, color_scheme="dark" if dark else "light")
    visitor.run()
    visitor.wait_phase("done")
    for place in PLACES:
        for outcome in ("rejected", "discarded"):
            if visitor.page.locator(f"{place} .tok.{outcome}").count():
                assert visitor.page.evaluate(CONTRAST, f"{place} .tok.{outcome}") >= 4.5, (place, outcome)


def dots(locator) -> list[bool]:
    return locator.evaluate_all("all => all.map((node) => getComputedStyle(node).backgroundImage.includes('gradient'))")


def test_blanks_are_seen_wherever_a_token_stands_apart_and_stay_blanks(visitor):
    for place in (LANE, CHIPS):
        blanks = visitor.page.locator(f"{place} .dropped .blank")
        assert blanks.count() > 0
        assert all(dots(blanks))
        assert set("".join(blanks.all_text_contents())) == {" "}
    for outcome in ("accepted", "bonus", "resampled"):  # with an underline alone a blank would be an underscore
        alone = (
            visitor.page.locator(f"{LANE} .tok.{outcome}")
            .filter(has_text="")
            .evaluate_all(
                "all => all.filter((node) => node.textContent && !node.textContent.trim() && node.textContent != '\\n')"
                ".map((node) => node.querySelectorAll('.blank').length)"
            )
        )
        assert all(alone)
    visitor.page.locator(f"{LANE} .tok.rejected").first.hover()
    visitor.page.wait_for_selector("#sd-card .sd-lists li")
    listed = visitor.page.locator("#sd-card .sd-lists .blank, #sd-card .sd-card-title .blank")
    assert listed.count() > 1
    assert all(dots(listed))


def test_what_has_no_shape_is_named(visitor):
    named = visitor.page.evaluate(
        """async () => {
            const {visible} = await import(new URL('./page-files/js/tokens.js', document.baseURI).href);
            return ['\\n\\t', '\\r\\n', '\\u200d', '\\ufeff', '👩\\u200d🚀', 'a\\u200db', ' a'].map(visible);
        }"""
    )
    assert named == ["↵⇥", "␍↵", "U+200D", "U+FEFF", "👩\u200d🚀", "a\u200db", " a"]
