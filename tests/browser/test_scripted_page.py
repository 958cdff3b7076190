"""The page in a browser, over a scripted host: every outcome, odd texts, errors, queues."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from specdemo.ui.stream import FAILED
from tests.browser.conftest import CONTRAST, HARD, PHONE
from tests.ui.fake_host import SCRIPT, pieces
from tests.ui.test_stream import wait_until

pytestmark = pytest.mark.browser

ANSWER = len(pieces(SCRIPT))  # tokens


@pytest.fixture(autouse=True)
def pace(scripted):
    """A quick host; a test that needs time to look sets its own step."""
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005


def test_text_is_exact_and_never_markup(scripted, visit):
    visitor = visit(scripted)
    visitor.run("echo " + HARD)
    visitor.wait_phase("done")
    for lane in ("baseline", "speculative"):
        assert visitor.text(lane) == HARD
    assert visitor.page.title() != "broken"
    assert visitor.page.locator(".sd-text :is(b, script, img)").count() == 0


def test_a_copied_lane_is_exactly_the_text(scripted, visit):
    visitor = visit(scripted, permissions=["clipboard-read", "clipboard-write"])
    visitor.run("echo " + HARD)
    visitor.wait_phase("done")
    assert visitor.page.locator(".sd-speculative .tok.rejected").count() > 0
    read = "navigator.clipboard.readText()"
    visitor.page.evaluate("getSelection().selectAllChildren(document.querySelector('.sd-speculative .sd-text'))")
    visitor.page.keyboard.press("Control+c")
    assert visitor.page.evaluate(read) == HARD
    visitor.page.evaluate("navigator.clipboard.writeText('')")
    visitor.page.click('[data-copy="speculative"]')
    assert visitor.page.evaluate(read) == HARD


def test_outcomes_differ_in_colour_and_in_a_second_cue(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    looks = {}
    for outcome in ("accepted", "resampled", "bonus", "rejected", "discarded"):
        looks[outcome] = visitor.page.evaluate(
            """(outcome) => {
                const node = document.querySelector(`.sd-speculative .tok.${outcome}`);
                const style = getComputedStyle(node);
                return {colour: style.color + style.backgroundColor,
                        cue: `${style.textDecorationLine} ${style.backgroundImage} ${style.border}`};
            }""",
            outcome,
        )
    assert len({look["colour"] for look in looks.values()}) == 5
    assert len({look["cue"] for look in looks.values()}) == 5


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_enough_contrast(scripted, visit, dark):
    visitor = visit(scripted, color_scheme="dark" if dark else "light")
    visitor.run()
    visitor.wait_phase("done")
    for outcome in ("accepted", "resampled", "bonus", "rejected", "discarded"):
        ratio = visitor.page.evaluate(CONTRAST, f".sd-speculative .tok.{outcome}")
        assert ratio >= 4.5, outcome
    for selector in (".sd-baseline .tok", "#sd-status-text", ".sd-num dt", "#sd-check-text"):
        assert visitor.page.evaluate(CONTRAST, selector) >= 4.5, selector


def test_refused_drafts_can_be_hidden(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    rejected = visitor.page.locator(".sd-speculative .sd-text .tok.rejected").first
    assert rejected.is_visible()
    visitor.page.uncheck("#sd-dropped")
    assert not rejected.is_visible()


def test_pointing_at_a_token_lights_its_round_and_shows_its_numbers(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    token = visitor.page.locator(".sd-speculative .sd-text .tok.rejected").nth(1)
    token.hover()
    key = token.get_attribute("data-key")
    lit = visitor.page.locator(".lit").evaluate_all("nodes => nodes.map((node) => node.dataset.round)")
    assert lit == [key, key]  # once in the text, once in the ledger
    card = visitor.page.locator("#sd-card")
    for fact in ("rejected", "p/q", "u (drawn)", "min(1, p/q)", "round"):
        assert fact in card.inner_text()
    visitor.page.wait_for_selector("#sd-card .sd-lists li")
    visitor.page.mouse.move(2, 2)
    assert not card.is_visible()
    assert visitor.page.locator(".lit").count() == 0


def test_the_trace_can_be_downloaded_twice_in_a_row(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    traces = []
    for _ in range(2):
        with visitor.page.expect_download() as download:
            visitor.page.click('[data-do="download"]')
        traces.append(download.value.path().read_text())
    assert traces[0] == traces[1] != ""


def test_the_arrow_keys_reach_every_token(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.focus(".sd-speculative .sd-text")
    visitor.page.keyboard.press("ArrowRight")
    visitor.page.keyboard.press("ArrowRight")
    index = "[...document.querySelectorAll('.sd-speculative .sd-text .tok')].indexOf(document.activeElement)"
    assert visitor.page.evaluate(index) == 1
    assert visitor.page.locator("#sd-card").is_visible()


@pytest.mark.parametrize("query", ["", "?drafter=tree", "?drafter=draft-model&rival=tree"])
def test_nothing_jumps(scripted, visit, query):
    visitor = visit(scripted, query)
    scripted.host.step = 0.03
    boxes = "['.sd-lanes', '.sd-legend', '#sd-tree-view', '#sd-ledger', '.sd-charts', '.sd-end'].map((s) => {" + (
        "const b = document.querySelector(s).getBoundingClientRect(); return [b.top, b.height]})"
    )
    visitor.page.wait_for_selector("#sd-chart-round .main-svg")
    if "rival" in query:
        visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.run()
    before = visitor.page.evaluate(boxes)  # the controls have made room, and nobody has written
    visitor.page.wait_for_selector(".sd-speculative .tok")
    during = visitor.page.evaluate(boxes)
    visitor.wait_phase("done")
    assert before == during == visitor.page.evaluate(boxes)


def test_the_lane_follows_its_text_unless_the_visitor_scrolled(scripted, visit):
    visitor = visit(scripted)
    scripted.host.step = 0.02
    visitor.run(max_tokens="400")
    box = ".sd-speculative .sd-text"
    visitor.page.wait_for_function(f"document.querySelector('{box}').scrollTop > 60")
    visitor.page.evaluate(f"document.querySelector('{box}').scrollTop = 10")
    visitor.page.wait_for_timeout(800)
    assert visitor.phase() == "running"
    assert visitor.page.evaluate(f"document.querySelector('{box}').scrollTop") == 10


def test_lost_updates_are_noticed_and_fetched(scripted, visit):
    visitor = visit(scripted)
    scripted.host.step = 0.02
    visitor.page.evaluate(
        """() => {
            const feed = specdemo.page.feed, receive = feed.receive.bind(feed);
            let calls = 0;
            feed.receive = (json) => { calls += 1; if (calls < 4 || calls > 16) receive(json); };
        }"""
    )
    visitor.run()
    visitor.wait_phase("done")
    assert visitor.page.evaluate("specdemo.page.feed.gaps") >= 1
    assert visitor.text("baseline") == visitor.text("speculative")
    assert visitor.page.evaluate("specdemo.page.lanes.speculative.tokens") == ANSWER


def test_a_long_run_keeps_the_page_small_and_its_last_token_within_reach(scripted, visit):
    visitor = visit(scripted)
    scripted.host.step = 0.001
    visitor.run(max_tokens="3000")
    visitor.wait_phase("done")
    assert visitor.page.evaluate("specdemo.page.lanes.speculative.tokens") == 3000
    assert visitor.page.locator(".sd-round").count() == 200
    assert visitor.page.evaluate("specdemo.page.feed.gaps") == 0
    visitor.page.hover(".sd-speculative .tok >> nth=-1")
    expect(visitor.page.locator("#sd-card")).to_be_visible()


def test_a_zoomed_chart_stays_zoomed_while_data_arrives(scripted, visit):
    visitor = visit(scripted)
    scripted.host.step = 0.05
    visitor.run(max_tokens="600")
    visitor.page.wait_for_function("specdemo.page.charts.rounds.speculative.length > 30")  # axes grow next at 50
    chart = "document.getElementById('sd-chart-alpha')"
    plot = visitor.page.locator("#sd-chart-alpha .nsewdrag")
    plot.scroll_into_view_if_needed()
    visitor.page.wait_for_function(f"{chart}.data[0].x.length > 30")  # it is drawn where it is seen
    ranges = f"[{chart}.layout.xaxis.range, {chart}.layout.yaxis.range]"
    full = visitor.page.evaluate(ranges)
    box = plot.bounding_box()
    visitor.page.mouse.move(box["x"] + 20, box["y"] + 20)
    visitor.page.mouse.down()
    visitor.page.mouse.move(box["x"] + 90, box["y"] + 90, steps=4)
    visitor.page.mouse.up()
    zoom = visitor.page.evaluate(ranges)
    assert zoom[0][1] - zoom[0][0] < (full[0][1] - full[0][0]) / 2
    seen = visitor.page.evaluate("specdemo.page.charts.rounds.speculative.length")
    visitor.page.wait_for_function(f"{chart}.data[0].x.length > {seen + 12}")
    assert visitor.page.evaluate(ranges) == zoom
    plot.dblclick()
    visitor.page.wait_for_function(f"{chart}.layout.xaxis.range[1] > 20")


def test_errors_are_sentences_and_the_next_run_works(scripted, visit):
    visitor = visit(scripted)
    for prompt, sentence in (
        ("UserError", "The prompt has 9,000 tokens, but the model reads 8,192. Shorten it."),
        ("ZeroDivision", FAILED),
        ("   ", "The prompt is empty. Type something or pick an example."),
    ):
        visitor.run(prompt)
        visitor.wait_phase("error", seconds=10)
        assert visitor.status() == sentence
    visitor.run("Hello")
    visitor.wait_phase("done")
    assert visitor.text("baseline")


def test_a_second_visitor_waits_in_line_and_keeps_a_page_of_their_own(scripted, visit):
    first, second = visit(scripted), visit(scripted)
    scripted.host.step = 0.5  # time enough for the second to press Run
    first.run("echo " + "one " * 40)
    first.page.wait_for_selector(".sd-speculative .tok")
    second.run("echo " + "two " * 10)
    second.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('place 1 of 1')")
    assert second.text("baseline") == ""
    scripted.host.step = 0.005
    first.wait_phase("done")
    second.wait_phase("done")
    assert set(first.text("baseline").split()) == {"one"}
    assert set(second.text("baseline").split()) == {"two"}


def test_a_full_queue_is_said_and_the_next_run_works(scripted, visit):
    visitor = visit(scripted)
    refusal = {"status": 503, "json": {"detail": "Queue is full. Max size is 20 and size is 20."}}
    visitor.page.route("**/queue/join*", lambda route: route.fulfill(**refusal))
    visitor.run()
    visitor.wait_phase("error", seconds=10)
    assert "busy" in visitor.status()
    visitor.page.unroute("**/queue/join*")
    visitor.run()
    visitor.wait_phase("done")


def test_leaving_the_line(scripted, visit):
    scripted.host.step = 0.1
    first, second = visit(scripted), visit(scripted)
    first.run(max_tokens="1000")
    first.page.wait_for_selector(".sd-speculative .tok")
    second.run()
    second.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('place')")
    second.page.click("#sd-stop")
    assert second.phase() == "left"
    first.page.click("#sd-stop")
    first.wait_phase("stopped")
    second.page.wait_for_timeout(800)
    assert second.phase() == "left"
    assert second.text("baseline") == ""


def test_closing_the_tab_stops_decoding(scripted, visit):
    scripted.host.step = 0.1
    visitor = visit(scripted)
    visitor.run(max_tokens="1000")
    visitor.page.wait_for_selector(".sd-speculative .tok")
    assert scripted.host.running == 1
    passes = scripted.host.passes
    visitor.page.close()
    wait_until(lambda: not scripted.host.running)
    assert scripted.host.passes < passes + 100, "decoding went on for nobody"


def test_settings_come_from_the_address_and_go_back_into_it(scripted, visit):
    visitor = visit(scripted, "?gamma=7&temperature=0.5&mode=baseline&prompt=Hi%20%3Cb%3E&seed=nonsense")
    visitor.page.wait_for_function("document.querySelector('#sd-prompt textarea').value === 'Hi <b>'")
    assert visitor.page.input_value("#sd-gamma input[type=number]") == "7"
    assert visitor.page.input_value("#sd-mode select") == "baseline"
    visitor.run(max_tokens="12")
    visitor.wait_phase("done")
    assert "does not run" in visitor.page.inner_text(".sd-speculative .sd-text")
    assert len(visitor.page.evaluate("specdemo.page.lanes.baseline.parts")) == 12
    for part in ("gamma=7", "temperature=0.5", "mode=baseline", "max_tokens=12", "prompt=Hi+%3Cb%3E"):
        assert part in visitor.page.url


def test_a_pair_that_cannot_run_is_shown_disabled_with_its_reason(scripted, visit):
    option = visit(scripted).page.locator("#sd-pair option").nth(1)
    assert option.is_disabled()
    assert "needs 17 GB" in option.inner_text()


def test_an_example_fills_the_prompt(scripted, visit):
    visitor = visit(scripted)
    visitor.page.click("#sd-examples label:has-text('Code')")
    visitor.page.wait_for_function("document.querySelector('#sd-prompt textarea').value.startsWith('def ')")
    visitor.page.wait_for_function("location.search.includes('chat=false')")


@pytest.mark.parametrize("width", [PHONE["width"], 390])
def test_a_phone_shows_the_speculative_lane_first_and_never_scrolls_sideways(scripted, visit, width):
    visitor = visit(scripted, viewport={**PHONE, "width": width}, has_touch=True)
    visitor.run()
    visitor.wait_phase("done")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
    top = "document.querySelector('.sd-{}').getBoundingClientRect().top"
    assert visitor.page.evaluate(top.format("speculative")) < visitor.page.evaluate(top.format("baseline"))
    assert not visitor.page.locator("#sd-rows").is_visible()
    visitor.screenshot(f"scripted-phone-{width}")


def test_language_theme_and_projector_are_remembered(scripted, visit):
    visitor = visit(scripted)
    for action in ("lang", "theme", "projector"):
        visitor.page.click(f'[data-do="{action}"]')
    visitor.page.reload()
    visitor.page.wait_for_function("window.specdemo?.page.feed && specdemo.page.stage")
    assert visitor.page.inner_text("#sd-run") == "実行"
    assert visitor.page.evaluate("document.body.classList.contains('dark')")
    assert float(visitor.page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).zoom")) > 1
    visitor.screenshot("scripted-projector-dark-ja")


def test_clear_during_a_run_clears_and_the_next_run_works(scripted, visit):
    visitor = visit(scripted)
    visitor.run(max_tokens="200")
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 6")
    visitor.page.click("#sd-clear")
    visitor.page.wait_for_timeout(1500)
    assert visitor.phase() == "idle"
    assert visitor.text("speculative") == visitor.text("baseline") == ""
    assert visitor.page.inner_text("#sd-speedup") == "–×"
    assert visitor.page.locator(".sd-round").count() == 0
    visitor.run("Again", max_tokens="24")
    visitor.wait_phase("done")
    assert visitor.text("speculative")


def test_a_lane_says_while_it_happens_why_nothing_is_drafted(scripted, visit):
    visitor = visit(scripted, "?drafter=short")
    scripted.host.step = 0.02
    visitor.run()
    ending = visitor.page.locator('.sd-speculative [data-n="ending"]')
    reason = "the draft reads at most 70 tokens"
    visitor.page.wait_for_function(
        "(reason) => document.querySelector('.sd-speculative [data-n=ending]').textContent.includes(reason)", arg=reason
    )
    assert visitor.phase() == "running"
    visitor.wait_phase("done")
    assert f"no draft: {reason}" in ending.inner_text()
    assert ending.get_attribute("title") == f"no draft: {reason}"
    assert visitor.page.inner_text('.sd-baseline [data-n="ending"]').count("·") == 1
    assert "only one token was left" in visitor.page.locator("#sd-rows .sd-round").first.inner_text()
    assert reason in visitor.page.locator("#sd-rows .sd-round").nth(1).inner_text()
    visitor.page.locator("#sd-rows .sd-round-n").nth(1).click()
    assert reason in visitor.page.inner_text("#sd-tree-title")
    verdict = visitor.page.locator("#sd-verdict-text")
    assert "Nothing was drafted in" in verdict.inner_text()
    assert reason in verdict.inner_text()
    visitor.page.locator(".sd-speculative .tok.plain").nth(-2).hover()
    assert reason in visitor.page.inner_text("#sd-card")
    visitor.screenshot("no-draft")
    visitor.page.click('[data-do="lang"]')
    for place in (ending, verdict, visitor.page.locator("#sd-tree-title")):
        assert "70 トークンまで" in place.inner_text()


def test_a_draft_that_cannot_read_the_prompt_is_told_before_the_first_token(scripted, visit):
    visitor = visit(scripted, "?drafter=short")
    scripted.host.step = 2  # the prompt takes two steps
    visitor.run("A long prompt")
    visitor.page.wait_for_function(
        "document.querySelector('.sd-speculative [data-n=ending]').textContent.includes('reads at most 20 tokens')"
    )
    assert visitor.page.locator(".sd-speculative .tok").count() == 0
    scripted.host.step = 0.005
    visitor.wait_phase("done")
    assert f"Nothing was drafted in {ANSWER} of {ANSWER} rounds" in visitor.page.inner_text("#sd-verdict-text")


def test_a_lane_that_fails_says_so_and_the_other_goes_on(scripted, visit):
    visitor = visit(scripted)
    visitor.run("NaN")
    visitor.wait_phase("done")
    ending = visitor.page.locator('.sd-speculative [data-n="ending"]')
    assert "error · M failed at 3" in ending.inner_text()
    assert "error" not in visitor.page.inner_text('.sd-baseline [data-n="ending"]')
    assert "Speculative: M failed at 3" in visitor.page.inner_text("#sd-verdict-text")
    written = visitor.text("speculative")
    assert written
    assert visitor.text("baseline").startswith(written)
    visitor.screenshot("failed")
    visitor.page.click('[data-do="lang"]')
    assert "確率を計算できませんでした" in ending.inner_text()
    assert "確率を計算できませんでした" in visitor.page.inner_text("#sd-verdict-text")
