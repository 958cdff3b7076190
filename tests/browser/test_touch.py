"""The page by finger, and in the browser's special modes: forced colours, and no motion."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser

PHONE = {"width": 380, "height": 800}
FINGER = 40  # pixels

# What is smaller than a finger, with its size: of everything that is pressed, the box that hears of it, probed from its
# middle outwards. Tokens in running text are as high as its lines (WCAG 2.5.8 lets them).
TOO_SMALL = """(finger) => {
    const pressed = 'button, select, summary, a[href], input, textarea, .sd-round, .sd-node .tok[data-key]';
    const small = [];
    for (const node of document.querySelectorAll(pressed)) {
        const whole = node.closest('label:not(.block, .container, .sd-select)') ?? node.closest('.sd-round') ?? node;
        if (node.disabled || node.closest('[inert], .sd-channel') || !node.checkVisibility()) continue;
        whole.scrollIntoView({block: 'center', inline: 'center'});
        const box = whole.getBoundingClientRect();
        if (!box.width) continue;
        const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
        const hit = (dx, dy) => {
            const at = document.elementFromPoint(x + dx, y + dy);
            return at !== null && (whole.contains(at) || at.contains(node) && at.matches('label'));
        };
        const reach = (dx, dy) => {
            let far = 0;
            while (far < finger && hit(dx * far, dy * far)) far += 0.5;
            return far;
        };
        const size = [reach(-1, 0) + reach(1, 0), reach(0, -1) + reach(0, 1)];
        const name = [node.tagName, node.id || node.className || node.name, node.textContent.slice(0, 20)].join(' ');
        if (Math.min(...size) < finger - 1) small.push(`${name}: ${size.join(' x ')}`);
    }
    return small;
}"""


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005


def unfolded(visitor: Visitor) -> None:
    visitor.page.evaluate("specdemo.page.fold?.set(false)")
    visitor.page.click("#sd-more > button")
    visitor.page.wait_for_selector("#sd-chat")
    visitor.page.evaluate("document.querySelectorAll('details').forEach((folded) => (folded.open = true))")


def test_whatever_is_pressed_has_the_size_of_a_finger(scripted, visit):
    visitor = visit(scripted, "?drafter=tree&rival=draft-model", viewport=PHONE, has_touch=True)
    visitor.run()
    visitor.wait_phase("done")
    unfolded(visitor)
    visitor.page.wait_for_selector(".sd-node .tok[data-key]")
    assert visitor.page.evaluate(TOO_SMALL, FINGER) == []
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visitor.screenshot("scripted-touch")


def test_a_mouse_has_the_page_as_dense_as_before(scripted, visit):
    visitor = visit(scripted)
    assert visitor.page.locator('[data-do="theme"]').bounding_box()["height"] < FINGER


def test_nothing_moves_where_no_motion_is_wanted(scripted, visit):
    visitor = visit(scripted, reduced_motion="reduce")
    visitor.run()
    visitor.page.wait_for_selector(".sd-speculative .tok.rejected")
    assert visitor.page.evaluate("document.getAnimations().length") == 0
    visitor.wait_phase("done")
    assert visitor.page.evaluate("document.getAnimations().length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_filled_part_and_the_thumb_of_a_slider_stand_out_and_its_track_does_not_glare(scripted, visit, scheme):
    visitor = visit(scripted, "?temperature=1&gamma=8", color_scheme=scheme)
    shades = {}
    pixels = visitor.page.locator("#sd-temperature input[type=range]").bounding_box()
    for part, share in (("filled", 0.2), ("thumb", 0.5), ("rest", 0.8)):
        shades[part] = luminance(visitor, pixels["x"] + share * pixels["width"], pixels["y"] + pixels["height"] / 2)
    ground = luminance(visitor, pixels["x"] + 0.2 * pixels["width"], pixels["y"] - 2)
    contrast = {part: (max(shade, ground) + 0.05) / (min(shade, ground) + 0.05) for part, shade in shades.items()}
    assert min(contrast["filled"], contrast["thumb"]) >= 3
    assert contrast["rest"] < 2


def luminance(visitor: Visitor, x: float, y: float) -> float:
    """Of one pixel as it is painted."""
    clip = {"x": round(x), "y": round(y), "width": 1, "height": 1}
    picture = visitor.page.screenshot(clip=clip)
    return visitor.page.evaluate(
        """async (bytes) => {
            const image = await createImageBitmap(new Blob([new Uint8Array(bytes)], {type: 'image/png'}));
            const pen = new OffscreenCanvas(1, 1).getContext('2d');
            pen.drawImage(image, 0, 0);
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
                .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        }""",
        list(picture),
    )


def test_forced_colours_leave_every_outcome_a_cue_and_every_bar(scripted, visit):
    visitor = visit(scripted, forced_colors="active")
    visitor.run()
    visitor.wait_phase("done")
    cues = visitor.page.evaluate(
        """() => Object.fromEntries(['accepted', 'resampled', 'bonus', 'rejected', 'discarded'].map((outcome) => {
            const style = getComputedStyle(document.querySelector(`.sd-speculative .sd-text .tok.${outcome}`));
            return [outcome, `${style.textDecorationLine} ${style.textDecorationStyle} ${style.borderTopStyle}`];
        }))"""
    )
    assert len(set(cues.values())) == 5, cues
    ground = "(selector) => getComputedStyle(document.querySelector(selector)).backgroundColor"
    assert visitor.page.evaluate(ground, ".sd-speculative .sd-progress i") != visitor.page.evaluate(ground, "body")
