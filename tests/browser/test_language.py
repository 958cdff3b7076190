"""In Japanese all of the page is Japanese: what is read, what is pointed at, what is read aloud, in every state."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from specdemo.errors import UserError
from specdemo.events import RaceEvent
from specdemo.settings import Settings
from specdemo.ui.copy import TEXTS
from specdemo.ui.host import Status
from specdemo.ui.labels import LABELS
from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser

# Names that a Japanese page has in Latin letters too, and those that the scripted host made up; else it is English.
NAMES = re.compile(
    r"""specdemo|English|tok/s|TTFT|TPOT|TV|EAGLE|Medusa|Top-[kp]|Min-p|typical|API|GPU|NaN|eos|min|max|norm|ms|GB|MB|
        Ctrl\+C|Mac|--dtype|cpu|fp32|SmolLM2-\d+M|Qwen2\.5-[\d.]+B|[\d.]+[MB]|
        (?:Scripted|Drawn)\ tree|Short\ draft|Draft\ model\ \(4\.8M\)|target\ SmolLM2""",
    re.VERBOSE,
)

# Everything that says something to somebody, with where it stands, but for what a model or a visitor wrote: a node of a
# tree is called by its token, which is taken out.
SAID = """() => {
    const said = [['title', document.title]];
    const theirs = '[translate=no]:not(#sd-headline), .sd-text .tok, .ghosts, textarea, script, style, [inert] *';
    const spoken = ['aria-label', 'title', 'placeholder', 'alt', 'aria-description', 'aria-valuetext'];
    const seen = (node) => node.checkVisibility({visibilityProperty: true}) || node.tagName === 'OPTION';
    const tokens = [...document.querySelectorAll('.sd-node .tok')].map((node) => node.innerText);
    tokens.sort((a, b) => b.length - a.length);
    const own = (text) => tokens.reduce((rest, token) => rest.replace(token, ''), text);
    for (const node of document.body.querySelectorAll('*')) {
        if (!seen(node) || node.closest(theirs)) continue;
        const where = `${node.tagName} ${node.getAttribute('class')}`;
        for (const name of spoken) {
            const text = node.getAttribute(name) ?? '';
            said.push([`${where} ${name}`, node.matches('.sd-node') ? own(text) : text]);
        }
        const texts = [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE);
        said.push(...texts.map((child) => [where, child.data]));
    }
    return said;
}"""


def english(visitor: Visitor) -> list[tuple[str, str]]:
    """What is said in Latin words that are no names."""
    return [
        (where, text) for where, text in visitor.page.evaluate(SAID) if re.search("[A-Za-z]{2,}", NAMES.sub("", text))
    ]


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005


@pytest.fixture
def japanese(scripted, visit):
    """A page in Japanese that has drawn all it has."""

    def open_page(query: str = "", **options) -> Visitor:
        visitor = visit(scripted, query, **options)
        visitor.page.evaluate("localStorage.setItem('specdemo-language', 'ja')")
        visitor.page.reload()
        visitor.page.wait_for_function("window.specdemo?.page.arrived && specdemo.page.stage")
        visitor.page.wait_for_selector("#sd-chart-round .main-svg")
        return visitor

    return open_page


@pytest.mark.parametrize("locale", ["en-US", "ja-JP", "de-DE"])
def test_before_a_run(japanese, locale):
    visitor = japanese(locale=locale)
    assert english(visitor) == []
    visitor.page.click("#sd-more > button")
    visitor.page.wait_for_selector("#sd-seed input")
    assert english(visitor) == []
    reason = visitor.page.locator("#sd-pair option").nth(1)
    assert reason.inner_text() == "Qwen2.5-7B + 0.5B — メモリーが 17 GB 必要で、空きが 9.0 GB 足りません"


@pytest.mark.parametrize("query", ["", "?drafter=tree", "?drafter=short&rival=prompt-lookup"])
def test_during_and_after_a_run(scripted, japanese, query):
    visitor = japanese(query)
    scripted.host.step = 0.05
    visitor.run()
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 6")
    assert english(visitor) == []
    scripted.host.step = 0.005
    visitor.wait_phase("done")
    assert english(visitor) == []
    for lane in ("speculative", "baseline"):
        visitor.page.locator(f".sd-{lane} .tok").nth(3).hover()
        visitor.page.wait_for_selector("#sd-card", state="visible")
        assert english(visitor) == []


def test_what_was_drawn_before_the_switch(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.locator("#sd-rows .sd-round-n").nth(4).click()
    rows = visitor.page.locator("#sd-rows .sd-round")
    many = rows.count()
    assert re.search("nodes", rows.nth(2).inner_text())
    visitor.page.click('[data-do="lang"]')
    assert english(visitor) == []
    assert rows.count() == many
    assert visitor.page.locator("#sd-rows .sd-round").nth(4).get_attribute("class") == "sd-round marked"
    visitor.page.click('[data-do="lang"]')
    assert re.search("nodes", rows.nth(2).inner_text())
    assert visitor.page.title() == TEXTS["en"]["title"]
    assert visitor.page.locator("footer button").first.inner_text().strip() == "Use via API"
    assert visitor.page.get_by_label("number input for Lookahead γ").count() == 1


def test_while_it_loads(scripted, japanese, monkeypatch):
    loading = Status(message="Downloading the target, 93 MB", fraction=0.5)
    monkeypatch.setattr(scripted.host, "status", lambda: loading)
    visitor = japanese()
    visitor.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('93 MB')")
    assert english(visitor) == []
    visitor.run()
    visitor.wait_phase("loading")
    assert visitor.status() == "モデルの準備を待っています: 本体モデルをダウンロード中（93 MB）"
    assert english(visitor) == []
    visitor.page.click("#sd-stop")
    visitor.wait_phase("stopped")
    failed = "SmolLM2-135M could not be loaded because of an unexpected error; the server's log has the details."
    monkeypatch.setattr(scripted.host, "status", lambda: Status(message=failed, error=failed))
    other = japanese()
    other.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('ログ')")
    assert english(other) == []


def test_errors(scripted, japanese, monkeypatch):
    race = scripted.host.race

    def strict(settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        if settings.prompt == "too long":
            raise UserError(
                "The prompt has 9,000 tokens, but SmolLM2-135M reads at most 8,192 with the answer. Shorten it."
            )
        yield from race(settings, stop)

    monkeypatch.setattr(scripted.host, "race", strict)
    visitor = japanese()
    for prompt, sentence in (
        (
            "too long",
            "プロンプトは 9,000 トークンありますが、SmolLM2-135M が読めるのは回答を含めて 8,192 トークンまでです。",
        ),
        ("ZeroDivision", "サーバーで問題が起きました。"),
        ("   ", "プロンプトが空です。"),
    ):
        visitor.run(prompt)
        visitor.wait_phase("error", seconds=20)
        assert visitor.status().startswith(sentence)
        assert english(visitor) == []
    visitor.run("Hello", max_tokens="0")
    visitor.wait_phase("error", seconds=20)
    assert visitor.status() == "「最大トークン」の値 0 は使えません: 1 以上にしてください。"
    visitor.page.click('[data-do="lang"]')
    assert visitor.status() == "Max tokens is 0: it should be greater than or equal to 1."


def test_a_failed_lane(japanese):
    visitor = japanese()
    visitor.run("NaN")
    visitor.wait_phase("done")
    assert english(visitor) == []


def test_notes_follow_the_switch(japanese):
    visitor = japanese()
    visitor.page.click("#sd-stop")
    assert visitor.status() == TEXTS["ja"]["nothing"]
    visitor.page.click('[data-do="lang"]')
    assert visitor.status() == TEXTS["en"]["nothing"]


def test_no_label_has_two_translations():
    """The switch finds Gradio's labels by what they say."""
    for language, table in LABELS.items():
        for other in LABELS.values():
            told = {}
            for key, label in table.items():
                assert told.setdefault(label, other[key]) == other[key], (language, label)
