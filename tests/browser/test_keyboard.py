"""The page by keyboard: few stops, each of them seen."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser

# The element in focus, and its ring, which may be an ancestor's: its contrast with the ground that it lies on, and by
# how many pixels an ancestor that scrolls or clips cuts it off. The ring is marked, to see that it goes.
RING = """() => {
    const focused = document.activeElement;
    if (focused === document.body) return null;
    const ringed = (node) => {
        const style = getComputedStyle(node);
        return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
    };
    const name = [focused.tagName, focused.id || focused.className || focused.value].join(' ');
    let holder = focused;
    for (let up = 0; holder && up < 2 && !ringed(holder); up++) holder = holder.parentElement;
    if (!holder || !ringed(holder)) return {name};
    document.querySelectorAll('[data-ring]').forEach((node) => node.removeAttribute('data-ring'));
    holder.dataset.ring = '';
    const style = getComputedStyle(holder);
    const out = parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth);
    const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const light = (colours) => {
        pen.fillStyle = '#fff';
        pen.fillRect(0, 0, 1, 1);
        for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = [];
    for (let at = out > 0 ? holder.parentElement : holder; at; at = at.parentElement) {
        ground.unshift(getComputedStyle(at).backgroundColor);
    }
    const [one, two] = [light(ground), light([...ground, style.outlineColor])];
    const box = holder.getBoundingClientRect();
    let cut = 0;
    for (let at = holder.parentElement; at && at !== document.body; at = at.parentElement) {
        if (getComputedStyle(at).overflowX === 'visible') continue;
        const frame = at.getBoundingClientRect();
        cut = Math.max(cut, frame.left - box.left + out, box.right + out - frame.right,
                       frame.top - box.top + out, box.bottom + out - frame.bottom);
    }
    return {name, cut, contrast: (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)};
}"""
LEFT = """() => {
    const node = document.querySelector('[data-ring]');
    return node && !node.contains(document.activeElement) && getComputedStyle(node).outlineStyle !== 'none';
}"""


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.002
    yield
    scripted.host.step = 0.002


def ran(scripted, visit, max_tokens: str = "48", **options) -> Visitor:
    """A page with all that can be reached: settings unfolded, a third lane, a text. It is left at its first button."""
    visitor = visit(scripted, f"?drafter=tree&rival=draft-model&max_tokens={max_tokens}", **options)
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.evaluate("specdemo.page.fold?.set(false)")
    visitor.page.click("#sd-more > button")
    visitor.page.wait_for_selector("#sd-chat")
    visitor.page.focus(".sd-tools button")  # the first of the page
    return visitor


def walk(visitor: Visitor, *keys: str) -> list[dict]:
    """Presses keys, and what was in focus behind each; none is shown in focus any more once it is left."""
    stops = []
    for key in keys:
        visitor.page.keyboard.press(key)
        assert not visitor.page.evaluate(LEFT), stops[-1]["name"]
        stop = visitor.page.evaluate(RING)
        if stop is None:
            break
        stops.append(stop)
    return stops


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_whatever_is_in_focus_shows_it(scripted, visit, scheme):
    visitor = ran(scripted, visit, color_scheme=scheme, reduced_motion="reduce")  # no colour is on its way
    stops = walk(visitor, *["Tab"] * 90)
    assert 40 < len(stops) < 90
    for box, keys in (
        (".sd-speculative .sd-text", "ArrowRight"),
        ("#sd-tree-view", "ArrowDown"),
        ("#sd-rows", "ArrowDown"),
    ):
        visitor.page.focus(box)
        inside = walk(visitor, *[keys] * 3)
        assert not any(stop["name"].startswith("DIV") for stop in inside)
        stops += inside
    assert [stop for stop in stops if stop.get("contrast", 0) < 3] == []
    assert [stop for stop in stops if stop["cut"] > 0.5] == []


def test_a_longer_text_has_no_more_stops(scripted, visit):
    counts = [len(walk(ran(scripted, visit, length), *["Tab"] * 90)) for length in ("8", "120")]
    assert counts[0] == counts[1]


def test_the_examples_are_one_stop_and_the_arrow_keys_choose(scripted, visit):
    visitor = visit(scripted)
    page = visitor.page
    page.focus("#sd-examples input:checked")
    prompt = page.input_value("#sd-prompt textarea")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(old) => document.querySelector('#sd-prompt textarea').value !== old", arg=prompt)
    assert page.evaluate(
        "document.activeElement.checked && document.activeElement.closest('label').className"
    ).endswith("selected")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('#sd-prompt textarea')")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.closest('#sd-examples')?.getAttribute('aria-label')") == "Examples"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.closest('#sd-examples') === null")
    assert visitor.complaints == []
