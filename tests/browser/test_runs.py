"""A run's life on the page: one at a time, stopped at any moment, replaced by what the next one writes."""

from __future__ import annotations

import json

import pytest

from tests.browser.conftest import Visitor
from tests.ui.test_stream import wait_until

pytestmark = pytest.mark.browser

LONG = "?max_tokens=3000"  # a run that outlasts every click on a busy machine


@pytest.fixture(autouse=True)
def pace(scripted):
    """A quick host; a test that needs time to look sets its own step."""
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005
    wait_until(lambda: not scripted.host.running)


def started(visitor: Visitor) -> None:
    visitor.page.wait_for_selector(".sd-speculative .tok")


def click_in_one_go(visitor: Visitor, *buttons: str) -> None:
    """As fast as nobody can: the requests of both clicks are on their way together."""
    visitor.page.evaluate("(ids) => ids.forEach((id) => document.getElementById(id).click())", list(buttons))


def press_twice(visitor: Visitor) -> None:
    visitor.page.dblclick("#sd-run", force=True)  # also where the button is inert


def hold_the_keys(visitor: Visitor) -> None:
    visitor.page.focus("#sd-prompt textarea")
    visitor.page.keyboard.down("Control")
    for _ in range(6):
        visitor.page.keyboard.down("Enter")  # without an up between, the browser repeats it
    visitor.page.keyboard.up("Enter")
    visitor.page.keyboard.up("Control")


@pytest.mark.parametrize("press", [press_twice, hold_the_keys])
def test_impatience_runs_once_and_stop_ends_it(scripted, visit, press):
    scripted.host.step = 0.05
    visitor, before = visit(scripted, LONG), scripted.host.races
    press(visitor)
    started(visitor)
    assert visitor.page.get_attribute("#sd-run", "aria-disabled") == "true"
    press(visitor)
    visitor.page.click("#sd-stop")
    visitor.wait_phase("stopped")
    assert visitor.page.get_attribute("#sd-run", "aria-disabled") == "false"
    visitor.page.wait_for_timeout(600)
    assert scripted.host.races == before + 1
    assert visitor.phase() == "stopped"
    assert visitor.text("speculative")


def test_a_second_run_of_a_session_is_refused_by_the_server_without_harm(scripted, visit):
    scripted.host.step = 0.02
    visitor, before = visit(scripted, "?max_tokens=512"), scripted.host.races
    with visitor.page.expect_request("**/queue/join*") as joined:
        visitor.run()
    started(visitor)
    body = json.loads(joined.value.post_data)
    body["event_data"] = {"run": "another"}
    visitor.page.evaluate(
        """([url, body]) => fetch(url, {method: 'POST', body, headers: {'Content-Type': 'application/json'}})""",
        [joined.value.url, json.dumps(body)],
    )
    visitor.wait_phase("done")
    assert visitor.text("baseline") == visitor.text("speculative") != ""
    assert visitor.page.evaluate("specdemo.page.lanes.speculative.tokens") == 512
    assert scripted.host.races == before + 1


def test_what_was_written_stays_until_the_next_run_writes(scripted, visit):
    visitor = visit(scripted)
    visitor.run("echo first run")
    visitor.wait_phase("done")
    verdict = visitor.page.inner_text("#sd-verdict-text")
    scripted.host.step = 3  # two such steps for the prompt
    visitor.run("echo second run")
    visitor.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('40 of 40')")
    assert visitor.text("baseline") == visitor.text("speculative") == "first run"
    visitor.page.click("#sd-stop")  # in prefill
    scripted.host.step = 0.005
    visitor.wait_phase("stopped")
    assert visitor.text("baseline") == visitor.text("speculative") == "first run"
    assert visitor.page.inner_text("#sd-verdict-text") == verdict
    with visitor.page.expect_download() as download:
        visitor.page.click('[data-do="download"]')
    assert "echo first run" in download.value.path().read_text()
    visitor.run("UserError")
    visitor.wait_phase("error")
    assert visitor.text("baseline") == "first run"
    visitor.run("echo third")
    visitor.wait_phase("done")
    assert visitor.text("baseline") == visitor.text("speculative") == "third"
    assert visitor.page.locator(".sd-round").count() == visitor.page.evaluate("specdemo.page.byLane.speculative.length")


def test_stop_between_run_and_start(scripted, visit):
    scripted.host.step = 0.05
    visitor = visit(scripted)
    visitor.page.wait_for_function("specdemo.page.opened")
    click_in_one_go(visitor, "sd-run", "sd-stop")
    assert visitor.phase() == "left"
    assert visitor.status() == "Stopped before it began."
    visitor.page.wait_for_timeout(600)
    wait_until(lambda: not scripted.host.running)
    assert visitor.text("speculative") == ""
    scripted.host.step = 0.005
    click_in_one_go(visitor, "sd-run", "sd-stop", "sd-run")  # the second one may overtake the stop of the first
    visitor.wait_phase("done")
    assert visitor.text("speculative")


def test_run_right_behind_clear_or_stop_is_not_swallowed(scripted, visit):
    scripted.host.step = 0.05
    visitor = visit(scripted, "?max_tokens=256")
    visitor.run("echo " + "one " * 256)
    started(visitor)
    visitor.page.fill("#sd-prompt textarea", "echo " + "two " * 10)
    click_in_one_go(visitor, "sd-clear", "sd-run")
    scripted.host.step = 0.005
    visitor.wait_phase("done")
    assert set(visitor.text("baseline").split()) == {"two"}
    assert scripted.host.most_running == 1


def test_a_place_in_line_is_right_also_when_somebody_leaves(scripted, visit):
    scripted.host.step = 0.1
    visitors = [visit(scripted, LONG) for _ in range(4)]
    for place, visitor in enumerate(visitors):
        visitor.run()
        if place:
            visitor.page.wait_for_function(
                f"document.getElementById('sd-status-text').textContent.includes('place {place} of {place}')"
            )
        else:
            started(visitor)
    visitors[1].page.click("#sd-stop")
    for visitor, place in ((visitors[2], "1 of 2"), (visitors[3], "2 of 2")):
        visitor.page.wait_for_function(
            f"document.getElementById('sd-status-text').textContent.includes('place {place}')", timeout=15_000
        )
    visitors[2].page.close()  # a closed tab leaves, too
    visitors[3].page.wait_for_function(
        "document.getElementById('sd-status-text').textContent.includes('place 1 of 1')", timeout=30_000
    )
    for visitor in (visitors[3], visitors[0]):
        visitor.page.click("#sd-stop")


def test_every_lost_update_is_fetched_the_last_ones_too(scripted, visit):
    scripted.host.step = 0.02
    visitor = visit(scripted)
    visitor.page.evaluate(
        """() => {
            const feed = specdemo.page.feed, receive = feed.receive.bind(feed);
            let calls = 0;
            feed.receive = (json) => { calls += 1; if (calls % 3 === 1 && calls < 20) receive(json); };
            feed.recover = (answer) => answer.update && receive(answer.update);
        }"""
    )
    visitor.run(max_tokens="128")
    visitor.wait_phase("done")
    assert visitor.page.evaluate("specdemo.page.feed.gaps") >= 1  # fewer and longer updates where a machine is slow
    assert visitor.text("baseline") == visitor.text("speculative")
    assert visitor.page.evaluate("specdemo.page.lanes.speculative.tokens") == 128


def test_a_page_that_hears_nothing_says_so_and_stops_waiting(scripted, visit):
    visitor = visit(scripted)
    for deaf in ("**/queue/join*", "**/run/**"):
        visitor.page.route(deaf, lambda route: None)  # a server that takes what is sent and never answers
    visitor.run()
    assert visitor.phase() == "queued"
    visitor.page.evaluate(
        """() => {
            const now = performance.now.bind(performance);
            let skipped = 0;
            performance.now = () => now() + skipped;
            setInterval(() => (skipped += 3000), 100);
        }"""
    )
    visitor.wait_phase("error")
    assert "does not answer" in visitor.status()
    assert visitor.page.get_attribute("#sd-run", "aria-disabled") == "false"
