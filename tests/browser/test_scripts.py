"""Text in the world's scripts: a lane shows it as a browser shows it in one piece, in its colours."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

JOINED = {
    "arabic": "مرحبا بالعالم، هذه المستشفيات الكبيرة.",
    "hebrew": "שלום עולם, זה משפט בעברית.",
    "hindi": "नमस्ते क्षत्रिय, यह हिन्दी में लिखा है।",
    "thai": "สวัสดีครับ นี่คือข้อความภาษาไทย",
    "combining": "e\u0301te\u0301 nai\u0308ve o\u0302\u0323 a\u030a",
    "blanks": "if a:\n\n        b =  c\n\t\td   = e.   f   ",
    "emoji": "👩\u200d🚀 👨\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 👍🏽",
}
MIXED = "Arabic follows.\nمرحبا بالعالم (نص).\nשלום (1).\nAnd back (again)."

# How wide the text of a lane is, and how wide the same text is in one piece in the same box.
WIDTHS = """(lane) => {
    const box = document.querySelector(`.sd-${lane} .sd-text`);
    const extent = (element) => {
        const paragraphs = element.children.length ? [...element.children] : [element];
        const boxes = paragraphs.flatMap((paragraph) => {
            const range = document.createRange();
            range.selectNodeContents(paragraph);
            return [...range.getClientRects()].filter((b) => b.width);
        });
        return Math.max(...boxes.map((b) => b.right)) - Math.min(...boxes.map((b) => b.left));
    };
    const whole = box.cloneNode(false);
    whole.textContent = specdemo.page.lanes[lane].text;
    box.after(whole);
    const widths = [extent(box), extent(whole)];
    whole.remove();
    return widths;
}"""

# Of each paragraph of a lane: where its first and its last character stand, and the box that it lies in.
ENDS = """(lane) => {
    const box = document.querySelector(`.sd-${lane} .sd-text`);
    const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    const places = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.parentElement.closest('.dropped')) continue;
        for (let i = 0; i < node.length; i += 1) {
            const range = document.createRange();
            range.setStart(node, i);
            range.setEnd(node, i + 1);
            places.push([node.data[i], range.getBoundingClientRect()]);
        }
    }
    const lines = [[]];
    for (const place of places) place[0] === '\\n' ? lines.push([]) : lines.at(-1).push(place);
    const {left, right} = box.getBoundingClientRect();
    const at = (place) => place[1].left - left;
    return lines.map((line) => ({first: at(line[0]), last: at(line.at(-1)), width: right - left}));
}"""


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005


def show(visitor, text: str) -> None:
    visitor.run("echo " + text)
    visitor.wait_phase("done")
    assert visitor.text("speculative") == visitor.text("baseline") == text


@pytest.mark.parametrize("script", JOINED)
def test_text_in_tokens_is_as_wide_as_in_one_piece(scripted, visit, script):
    visitor = visit(scripted)
    show(visitor, JOINED[script])
    visitor.screenshot(f"script-{script}")
    visitor.page.uncheck("#sd-dropped")
    for outcome in (".accepted", ":is(.resampled, .bonus)"):
        assert visitor.page.locator(f".sd-speculative .sd-text .tok{outcome}").count() > 0
    for lane in ("baseline", "speculative"):
        tokens, whole = visitor.page.evaluate(WIDTHS, lane)
        assert tokens == pytest.approx(whole, abs=1)


def test_each_paragraph_of_a_lane_runs_in_its_own_direction(scripted, visit):
    visitor = visit(scripted)
    show(visitor, MIXED)
    visitor.screenshot("script-mixed")
    visitor.page.uncheck("#sd-dropped")
    for lane in ("baseline", "speculative"):
        english, arabic, hebrew, again = visitor.page.evaluate(ENDS, lane)
        for line in (english, again):
            assert line["first"] < 20 < line["last"]
        for line in (arabic, hebrew):  # from the right, to a full stop at the left
            assert line["width"] - 60 < line["first"]
            assert line["last"] < line["width"] - 60


def test_a_refused_draft_does_not_turn_the_paragraph_that_it_stands_in(scripted, visit):
    visitor = visit(scripted)
    scripted.host.accept, before = 0.0, scripted.host.accept
    try:
        show(visitor, "שלום עולם.")  # " wrong" and " lost" stand before it
    finally:
        scripted.host.accept = before
    assert visitor.page.locator(".sd-speculative .round:first-child .dropped").count() > 0
    (line,) = visitor.page.evaluate(ENDS, "speculative")
    assert line["first"] > line["last"]


def test_the_prompt_runs_in_the_direction_of_what_is_typed(scripted, visit):
    prompt = visit(scripted).page.locator("#sd-prompt textarea")
    assert prompt.evaluate(
        "(box) => [box.dir, getComputedStyle(box).unicodeBidi, getComputedStyle(box).textAlign]"
    ) == [
        "auto",
        "plaintext",
        "start",
    ]
    prompt.fill("שלום.")
    assert prompt.evaluate("(box) => getComputedStyle(box).direction") == "rtl"


def test_a_token_that_stands_alone_runs_in_its_own_direction(scripted, visit):
    visitor = visit(scripted)
    show(visitor, "a שלום. b שלום. c שלום. d שלום. e שלום.")
    visitor.page.locator(".sd-speculative .sd-text .tok", has_text="שלום").first.hover()
    visitor.page.wait_for_selector("#sd-card .sd-lists li")
    for cell in ("#sd-rows .tok", "#sd-tree-view .tok", "#sd-card code"):
        styles = visitor.page.locator(cell).evaluate_all("all => all.map((cell) => getComputedStyle(cell).unicodeBidi)")
        assert set(styles) == {"plaintext"}, cell


def test_a_sign_without_its_letter_stands_on_a_circle(scripted, visit):
    visitor = visit(scripted)
    show(visitor, JOINED["combining"])
    assert visitor.page.locator("#sd-rows .tok", has_text="◌\u0301").count() > 0


@pytest.mark.parametrize("script", JOINED)
def test_a_copied_lane_in_any_script_is_exactly_the_text(scripted, visit, script):
    visitor = visit(scripted, permissions=["clipboard-read", "clipboard-write"])
    show(visitor, JOINED[script])
    visitor.page.evaluate("getSelection().selectAllChildren(document.querySelector('.sd-speculative .sd-text'))")
    visitor.page.keyboard.press("Control+c")
    assert visitor.page.evaluate("navigator.clipboard.readText()") == JOINED[script]


def test_a_translator_leaves_what_a_model_wrote_and_takes_the_pages_own_words(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    own = visitor.page.locator(".sd-text .sd-empty, .sd-lane h2, .sd-legend li, .sd-tagline, .sd-num dt")
    assert own.evaluate_all("all => all.every((node) => node.translate && !node.closest('.notranslate'))")
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.locator(".sd-speculative .sd-text .tok.rejected").first.hover()
    visitor.page.wait_for_selector("#sd-card .sd-lists li")
    texts = (".sd-text:has(.tok)", ".sd-text .tok")
    for cell in (*texts, "#sd-rows .tok", "#sd-tree-view .tok", "#sd-card code", "#sd-headline"):
        cells = visitor.page.locator(cell)
        assert cells.count() > 0
        assert cells.evaluate_all("all => all.every((node) => !node.translate && node.closest('.notranslate'))"), cell
    said = visitor.page.locator(".sd-card-verdict, #sd-verdict-text, .sd-chips > i, #sd-tree-title")
    assert said.evaluate_all("all => all.every((node) => node.translate)")
    visitor.page.click("#sd-clear")
    assert visitor.page.locator(".sd-text").evaluate_all("all => all.every((node) => node.translate)")


def test_half_an_emoji_in_the_prompt_box_is_a_replacement_character(scripted, visit):
    visitor = visit(scripted)
    visitor.page.evaluate(
        """() => {
            const box = document.querySelector('#sd-prompt textarea');
            box.value = 'echo one \\ud83d two';
            box.dispatchEvent(new Event('input', {bubbles: true}));
        }"""
    )
    visitor.run()
    visitor.wait_phase("done")
    assert visitor.text("speculative") == visitor.text("baseline") == "one \ufffd two"
    assert "prompt=echo+one+%EF%BF%BD+two" in visitor.page.url
