"""The app as a user starts it: `python app.py`, the default pair, a browser."""

from __future__ import annotations

import time

import psutil
import pytest

from specdemo.events import Trace
from tests.browser.conftest import PHONE

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def loaded(real, browser):
    """The app with its models in memory, so that no other test waits for them."""
    page = browser.new_page()
    page.set_default_timeout(300_000)
    page.goto(real.address)
    page.wait_for_function("window.specdemo?.page.status.ready || window.specdemo?.page.status.error")
    assert not page.evaluate("specdemo.page.status.error")
    page.close()
    return real


def test_the_page_is_usable_while_the_model_loads(real, visit):
    visitor = visit(real)
    assert visitor.page.locator("#sd-run").is_enabled()
    assert visitor.status()
    assert "speculative decoder will write here" in visitor.page.inner_text(".sd-speculative .sd-text")
    visitor.screenshot("real-idle")


def test_a_run_streams_both_lanes_rounds_and_charts_from_this_server_alone(loaded, visit):
    visitor = visit(loaded)
    visitor.run(max_tokens="96")
    lengths = {"baseline": set(), "speculative": set()}
    points = set()
    shot = False
    while visitor.phase() not in ("done", "error", "stopped"):
        for lane, seen in lengths.items():
            seen.add(len(visitor.text(lane)))
        points.add(visitor.page.evaluate("document.getElementById('sd-chart-rate').data?.[1].x.length ?? 0"))
        if not shot and max(lengths["speculative"]) > 120:
            visitor.screenshot("real-mid")
            shot = True
        visitor.page.wait_for_timeout(100)
    assert visitor.phase() == "done", visitor.status()
    assert min(len(seen) for seen in lengths.values()) >= 5, "the text did not stream"
    assert len(points) >= 3, "the chart did not move"
    assert visitor.page.locator(".sd-round").count() >= 10
    assert "×" in visitor.page.inner_text("#sd-verdict-text")
    assert visitor.page.inner_text("#sd-check-text").startswith(("Texts identical", "Near-tie"))
    visitor.screenshot("real-done")
    visitor.page.click('[data-do="theme"]')
    visitor.page.wait_for_timeout(400)
    visitor.screenshot("real-done-dark")
    foreign = [url for url in visitor.requests if not url.startswith((loaded.address, "data:", "blob:"))]
    assert foreign == []
    assert visitor.complaints == []


def test_every_outcome_of_the_trace_is_on_the_page_and_the_trace_is_valid(loaded, visit):
    visitor = visit(loaded, "?drafter=draft-model")  # a chain: each of its tokens stands in the text
    visitor.page.wait_for_function("document.querySelector('#sd-drafter select').value === 'draft-model'")
    visitor.run("Name three primary colours.", max_tokens="96", gamma="2")  # short drafts, so that some pass whole
    visitor.wait_phase("done")
    with visitor.page.expect_download() as download:
        visitor.page.click('[data-do="download"]')
    trace = Trace.from_json(download.value.path().read_bytes())
    for lane in ("baseline", "speculative"):
        assert visitor.text(lane) == trace.text(lane) != ""
    tokens = [t for r in trace.rounds("speculative") for t in [*r.drafted, *([r.final] if r.final else [])]]
    counts = {outcome: sum(t.outcome == outcome for t in tokens) for outcome in {t.outcome for t in tokens}}
    assert counts.keys() >= {"accepted", "rejected", "discarded", "resampled", "bonus"}
    for outcome, count in counts.items():
        assert visitor.page.locator(f".sd-speculative .sd-text .tok.{outcome}").count() == count


def test_above_temperature_zero_the_page_says_why_texts_differ(loaded, visit):
    visitor = visit(loaded, "?temperature=1&seed=3")
    visitor.page.wait_for_function("document.querySelector('#sd-temperature input[type=number]').value === '1'")
    visitor.run("Tell a story.", max_tokens="24")
    visitor.wait_phase("done")
    assert "same distribution" in visitor.page.inner_text("#sd-check-text")


def test_control_tokens_in_a_prompt_are_text(loaded, visit):
    visitor = visit(loaded)
    visitor.run("Repeat: <|im_end|> <b>bold</b> <script>document.title='broken'</script> 日本語 🌊", max_tokens="24")
    visitor.wait_phase("done")
    assert visitor.page.title() != "broken"
    assert visitor.text("baseline")


def test_stop_during_a_run_keeps_everything_and_the_next_run_works(loaded, visit):
    visitor = visit(loaded)
    visitor.run("Tell a very long story about the sea.", max_tokens="1500")
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 10")
    visitor.page.click("#sd-stop")
    visitor.page.click("#sd-stop")
    visitor.wait_phase("stopped")
    assert visitor.page.evaluate("specdemo.page.lanes.speculative.tokens") < 200
    text = visitor.text("speculative")
    assert text
    visitor.page.click("#sd-stop")
    assert visitor.status() == "Nothing is running."
    assert visitor.text("speculative") == text
    with visitor.page.expect_download() as download:
        visitor.page.click('[data-do="download"]')
    assert Trace.from_json(download.value.path().read_bytes()).text("speculative") == text
    visitor.run("Hello", max_tokens="8")
    visitor.wait_phase("done")


def test_a_closed_tab_stops_decoding(loaded, visit):
    app = psutil.Process(loaded.pid)
    visitor = visit(loaded)
    visitor.run("Tell a very long story about the sea.", max_tokens="1500")
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 10")
    app.cpu_percent()
    time.sleep(1)
    busy = app.cpu_percent()
    assert busy > 5, "it should be decoding"
    visitor.page.close()
    time.sleep(1.2)
    app.cpu_percent()
    time.sleep(1)
    assert app.cpu_percent() < busy / 3


def test_a_phone_runs_it_too(loaded, visit):
    visitor = visit(loaded, viewport=PHONE, has_touch=True)
    visitor.run("Why do cats purr?", max_tokens="48")
    visitor.wait_phase("done")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visitor.screenshot("real-phone")


def test_an_eagle_races_medusa_and_its_trees_show_every_fate(loaded, visit):
    """Three lanes of the real pair; the tree view steps through real rounds."""
    visitor = visit(loaded, "?drafter=eagle&rival=medusa")
    visitor.page.wait_for_function("document.querySelector('#sd-drafter select').value === 'eagle'")
    visitor.run(max_tokens="64")
    visitor.wait_phase("done")
    assert "identical" in visitor.page.inner_text("#sd-check-text") or "Near-tie" in visitor.page.inner_text(
        "#sd-check-text"
    )
    texts = {lane: visitor.text(lane) for lane in ("baseline", "speculative", "rival")}
    assert len(set(texts.values())) == 1 or "Near-tie" in visitor.page.inner_text("#sd-check-text")
    rounds = visitor.page.evaluate("specdemo.page.byLane.speculative.length")
    seen = set()
    for index in range(rounds):
        visitor.page.evaluate(f"specdemo.page.tree.open({index})")
        for outcome in ("accepted", "rejected", "discarded"):
            if visitor.page.locator(f"#sd-tree-view .sd-node .tok.{outcome}").count():
                seen.add(outcome)
    assert seen == {"accepted", "rejected", "discarded"}
    best = visitor.page.evaluate(
        """() => {
            const rounds = specdemo.page.byLane.speculative;
            const most = Math.max(...rounds.map((round) => round.accepted));
            const index = rounds.findIndex((round) => round.accepted === most);
            specdemo.page.tree.open(index);
            return rounds[index];
        }"""
    )
    assert f"{best['draftedCount']} nodes · depth {best['depth']}" in visitor.page.inner_text("#sd-tree-title")
    visitor.page.locator("#sd-tree-view .sd-node .tok.accepted").first.hover()
    visitor.page.wait_for_selector("#sd-card:not([hidden])")
    assert "drafter's estimate" in visitor.page.inner_text("#sd-card")
    visitor.screenshot("real-eagle")
