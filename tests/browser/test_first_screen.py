"""What is seen without scrolling: the whole race on a laptop and a projector, its better half on a phone; and the
controls, which make room for it."""

from __future__ import annotations

import pytest

from tests.browser.conftest import DESKTOP

pytestmark = pytest.mark.browser

LAPTOP = {"width": 1280, "height": 800}
BEAMER = {"width": 1920, "height": 1080}
PHONE = {"width": 380, "height": 800}
STREAMING = "specdemo.page.phase === 'running' && specdemo.page.lanes.speculative.tokens > 30"

BOXES = """(selectors) => Object.fromEntries(selectors.map((selector) => {
    const {left, top, right, bottom} = document.querySelector(selector).getBoundingClientRect();
    return [selector, {left, top, right, bottom}];
}))"""
RACE = [
    ".sd-hero b",
    ".sd-baseline .sd-text",
    ".sd-speculative .sd-text",
    ".sd-legend",
    "#sd-verdict",
    "#sd-chart-alpha",
    "#sd-chart-rate",
    "#sd-run",
    "#sd-stop",
]


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.03


def remember(visit, scripted, query="", **options):
    """A visitor whose browser remembers the projector's layout."""
    visitor = visit(scripted, query, **options)
    visitor.page.evaluate("localStorage.setItem('specdemo-projector', 'true')")
    visitor.page.reload()
    visitor.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")
    return visitor


@pytest.mark.parametrize("projector", [False, True], ids=["window", "projector"])
@pytest.mark.parametrize("size", [LAPTOP, BEAMER], ids=["laptop", "beamer"])
@pytest.mark.parametrize("query", ["", "?drafter=tree", "?rival=tree"], ids=["chain", "tree", "three"])
def test_the_race_its_number_charts_and_verdict_are_one_screen_that_stands_still(
    scripted, visit, query, size, projector
):
    visitor = (remember if projector else lambda visit, *rest, **more: visit(*rest, **more))(
        visit, scripted, query, viewport=size
    )
    race = [part for part in RACE if part != ".sd-hero b"] if "rival" in query else RACE
    visitor.run()
    visitor.page.wait_for_function(STREAMING)
    streaming = visitor.page.evaluate(BOXES, race)
    for part, box in streaming.items():
        assert box["left"] >= 0, part
        assert box["top"] >= 0, part
        assert box["right"] <= size["width"], part
        assert box["bottom"] <= size["height"], part
    text = streaming[".sd-speculative .sd-text"]
    assert text["bottom"] - text["top"] >= 0.16 * size["height"]
    visitor.wait_phase("done")
    visitor.page.wait_for_function("!document.getElementById('sd-verdict').classList.contains('empty')")
    done = visitor.page.evaluate(BOXES, race)
    for part in race:
        assert done[part]["top"] == pytest.approx(streaming[part]["top"], abs=1), part
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == size["width"]


@pytest.mark.parametrize("size", [LAPTOP, BEAMER, {"width": 2560, "height": 1440}, {"width": 1024, "height": 768}])
def test_a_projected_token_can_be_read_from_the_last_row(scripted, visit, size):
    visitor = remember(visit, scripted, viewport=size)
    assert not visitor.page.is_visible("#sd-examples")  # controls are folded before the first run, too
    visitor.run()
    visitor.page.wait_for_function(STREAMING)
    # Measured on the screen: a line's height is 1.6 letters.
    line = visitor.page.evaluate("document.querySelector('.sd-baseline .sd-text .tok').getBoundingClientRect().height")
    assert line >= 0.022 * size["height"]
    visitor.page.click('[data-do="projector"]')
    assert visitor.page.evaluate("!document.documentElement.classList.contains('sd-projector')")


def test_controls_make_room_for_a_run_and_come_back_when_they_are_wanted(scripted, visit):
    visitor = visit(scripted, "?temperature=0.5")
    page = visitor.page
    settings, prompt = page.locator("#sd-max-tokens input"), page.locator("#sd-prompt textarea")
    assert settings.is_visible()
    high = prompt.bounding_box()["height"]
    visitor.run()
    assert settings.is_hidden()
    assert prompt.bounding_box()["height"] < high / 2
    assert page.inner_text("#sd-fold small") == "Best of the pair · γ live · T 0.5 · 160 tokens"
    assert page.get_attribute("#sd-fold", "aria-expanded") == "false"
    page.click("#sd-fold")
    assert settings.is_visible()
    page.click("#sd-fold")
    assert settings.is_hidden()
    prompt.click()
    assert settings.is_visible()
    assert prompt.bounding_box()["height"] >= high
    page.click("#sd-stop")
    visitor.wait_phase("stopped", "done")
    # By keyboard from a field that folds away: the focus is on Run then, not lost.
    settings.focus()
    page.keyboard.press("Control+Enter")
    assert settings.is_hidden()
    assert page.evaluate("document.activeElement.id") == "sd-run"
    visitor.wait_phase("done")
    page.reload()
    page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")
    assert settings.is_hidden()  # the run is there again, and so is its screen
    page.click("#sd-clear")
    assert settings.is_visible()


def test_a_run_that_is_refused_shows_the_settings_that_it_is_refused_for(scripted, visit):
    visitor = visit(scripted)
    visitor.run(max_tokens="0")
    visitor.wait_phase("error")
    assert visitor.page.locator("#sd-max-tokens input").is_visible()


def test_the_settings_in_short_follow_settings_and_language(scripted, visit):
    visitor = visit(scripted, "?gamma=3&drafter=tree")
    visitor.run()
    short = visitor.page.locator("#sd-fold small")
    assert short.inner_text() == "Scripted tree · γ 3 · T 0 · 160 tokens"
    visitor.page.click('[data-do="lang"]')
    assert short.inner_text().endswith("γ 3 · T 0 · 160 トークン")


def test_on_a_phone_run_brings_number_lane_and_charts_into_view(scripted, visit):
    visitor = visit(scripted, viewport=PHONE, has_touch=True, is_mobile=True)
    page = visitor.page
    page.tap("#sd-run")
    page.wait_for_function(STREAMING)
    parts = [".sd-hero b", ".sd-speculative .sd-text", "#sd-chart-alpha", "#sd-chart-rate"]
    boxes = page.evaluate(BOXES, [*parts, "#sd-stop", "#sd-verdict", ".sd-baseline .sd-text"])
    tops = [boxes[part]["top"] for part in [*parts, "#sd-verdict", ".sd-baseline .sd-text"]]
    assert tops == sorted(tops)
    assert boxes["#sd-stop"]["bottom"] <= boxes[".sd-hero b"]["top"]
    for part in [*parts, "#sd-stop"]:
        assert boxes[part]["top"] >= 0, part
        assert boxes[part]["bottom"] <= PHONE["height"], part
        assert boxes[part]["right"] <= PHONE["width"], part
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    assert page.locator("#sd-stop").is_visible()  # wherever one reads
    assert page.evaluate(BOXES, ["#sd-stop"])["#sd-stop"]["top"] >= 0
    page.tap("#sd-stop")
    visitor.wait_phase("stopped")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_window_too_low_for_all_is_scrolled_to_the_race(scripted, visit):
    visitor = visit(scripted, viewport={**DESKTOP, "height": 500})
    visitor.run()
    visitor.page.wait_for_function(STREAMING)
    boxes = visitor.page.evaluate(BOXES, ["#sd-stage", "#sd-stop"])
    assert boxes["#sd-stop"]["top"] >= 0
    assert boxes["#sd-stop"]["bottom"] <= boxes["#sd-stage"]["top"] + 1
    assert boxes["#sd-stage"]["top"] < 60


def test_every_number_has_room_under_its_label(scripted, visit):
    """The widest values that a tree's lane comes to, at the widths where its columns are narrowest."""
    visitor = visit(scripted, "?drafter=tree&max_tokens=30", viewport=LAPTOP)
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.evaluate(
        """() => {
            const widest = {ttft: '12.34\u00a0s', tpot: '999\u00a0ms', nodes: '63.9 · 9.9'};
            for (const [name, text] of Object.entries(widest))
                document.querySelector(`.sd-speculative [data-n="${name}"]`).textContent = text;
        }"""
    )
    for width in (1280, 1100, 380):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        cut = """[...document.querySelectorAll('.sd-speculative .sd-num')].filter((n) => n.scrollWidth > n.clientWidth)
            .map((n) => n.textContent)"""
        assert visitor.page.evaluate(cut) == [], width
