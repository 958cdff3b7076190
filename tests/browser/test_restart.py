"""What is on the page outlasts a reload, be it the visitor's or that of a server that comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.browser.conftest import ROOT, Site, Visitor
from tests.serving import free_port

pytestmark = pytest.mark.browser

SHOWN = """() => ({
    texts: Object.fromEntries(Object.entries(specdemo.page.lanes).map(([name, lane]) => [name, lane.text])),
    rounds: [...document.querySelectorAll('#sd-rows .sd-round')].map((row) => row.textContent),
    points: specdemo.page.charts.rounds.speculative.length,
    speedup: document.getElementById('sd-speedup').textContent,
    verdict: document.getElementById('sd-verdict-text').textContent,
    check: document.getElementById('sd-check-text').textContent,
    figures: [...document.querySelectorAll('.sd-lane [data-n]')].map((node) => node.textContent),
})"""


class Server:
    """The page over a scripted host in a process of its own, always at the same address."""

    def __init__(self) -> None:
        self.port = free_port()
        self.site = Site(f"http://127.0.0.1:{self.port}/")
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        env = {**os.environ, "PORT": str(self.port), "LOAD": "0", "STEP": "0.02"}
        self._process = subprocess.Popen([sys.executable, "-m", "tests.ui.fake_host"], cwd=ROOT, env=env)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert self._process.poll() is None, "the server did not start"
            try:
                httpx.get(self.site.address)
            except httpx.TransportError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError("the server did not start serving")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)


@pytest.fixture(scope="module")
def process() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(process) -> Iterator[Server]:
    """A server that runs before and after each test."""
    yield process
    try:
        httpx.get(process.site.address)
    except httpx.TransportError:
        process.start()


def opened(visitor: Visitor) -> None:
    visitor.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")


def mark(visitor: Visitor) -> str:
    return visitor.page.inner_text("#sd-kept")


def shown(visitor: Visitor) -> dict:
    return visitor.page.evaluate(SHOWN)


def test_a_reload_keeps_what_a_run_wrote_and_marks_it(server, visit):
    visitor = visit(server.site)
    visitor.run()
    visitor.wait_phase("done")
    before = shown(visitor)
    assert before["texts"]["speculative"]
    assert mark(visitor) == ""
    for _ in range(2):  # kept over the next reload, too
        visitor.page.reload()
        opened(visitor)
        assert shown(visitor) == before
        assert mark(visitor) == "From before the reload."
    visitor.page.hover(".sd-speculative .tok.accepted")
    assert "accepted" in visitor.page.inner_text("#sd-card")
    visitor.page.click('[data-do="download"]')
    visitor.page.wait_for_function("document.getElementById('sd-status-text').textContent.includes('outlast')")
    visitor.page.click('[data-do="lang"]')
    assert "再読み込み前" in mark(visitor)
    visitor.run("echo next")
    visitor.wait_phase("done")
    assert visitor.text("speculative") == "next"
    assert mark(visitor) == ""


def test_a_reload_in_the_middle_keeps_what_was_written_so_far(server, visit):
    visitor = visit(server.site, "?max_tokens=3000")
    visitor.run()
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 20")
    before = visitor.text("baseline")
    visitor.page.reload()
    opened(visitor)
    assert visitor.text("baseline").startswith(before)
    assert mark(visitor) == "From before the reload. The run was cut off."
    assert "stopped" in visitor.page.inner_text('.sd-speculative [data-n="ending"]')
    assert visitor.phase() == "idle"
    visitor.run("echo next", max_tokens="12")
    visitor.wait_phase("done")


def test_a_way_away_and_back_keeps_it_and_a_link_shows_a_page_of_its_own(server, visit):
    visitor = visit(server.site)
    visitor.run("echo here")
    visitor.wait_phase("done")
    visitor.page.goto("about:blank")
    visitor.page.go_back()
    opened(visitor)
    assert visitor.text("baseline") == "here"
    visitor.page.goto(server.site.address + "?gamma=3")
    opened(visitor)
    assert visitor.text("baseline") == mark(visitor) == ""


def test_a_step_back_to_another_link_does_not_show_this_ones_run(server, visit):
    visitor = visit(server.site, "?gamma=2")
    visitor.page.goto(server.site.address + "?gamma=3")
    opened(visitor)
    visitor.run("echo three")
    visitor.wait_phase("done")
    visitor.page.go_back()
    opened(visitor)
    assert visitor.page.input_value("#sd-gamma input[type=number]") == "2"
    assert visitor.text("baseline") == mark(visitor) == ""


def test_a_run_too_long_to_be_kept_is_said(server, visit):
    visitor = visit(server.site)
    visitor.run("echo here")
    visitor.wait_phase("done")
    visitor.page.evaluate("specdemo.page.run.kept.whole.filler = 'x'.repeat(5e6)")
    visitor.page.reload()
    opened(visitor)
    assert "too long" in mark(visitor)
    assert visitor.text("baseline") == ""
    visitor.run("echo next")
    visitor.wait_phase("done")
    assert mark(visitor) == ""


def test_a_long_prompt_outlasts_a_reload(server, visit):
    visitor = visit(server.site)
    prompt = "echo " + "long " * 600  # too long for the address
    visitor.page.fill("#sd-prompt textarea", prompt)
    visitor.page.reload()
    opened(visitor)
    visitor.page.wait_for_function("(p) => document.querySelector('#sd-prompt textarea').value === p", arg=prompt)
    visitor.run()
    visitor.wait_phase("done")
    assert visitor.text("baseline").startswith("long long")


def test_a_server_that_is_away_is_said_at_once_and_everything_works_when_it_is_back(server, visit):
    visitor = visit(server.site)
    visitor.run()
    visitor.wait_phase("done")
    before = shown(visitor)
    server.kill()
    visitor.page.click("#sd-run")
    visitor.wait_phase("error")
    for _ in range(2):
        assert "does not answer" in visitor.status()
        assert shown(visitor) == before
        assert not visitor.page.locator(".toast-body").first.is_visible()
        visitor.page.click("#sd-stop")
        assert "does not answer" in visitor.status()
        visitor.page.click("#sd-run")
        assert visitor.phase() == "error"
    with visitor.page.expect_navigation():
        server.start()
    opened(visitor)
    assert shown(visitor) == before
    assert mark(visitor) == "From before the reload."
    visitor.run("echo next")
    visitor.wait_phase("done")
    assert visitor.text("speculative") == "next"


def test_a_server_killed_in_the_middle_of_a_run_costs_nothing_that_was_written(server, visit):
    visitor = visit(server.site, "?max_tokens=3000")
    visitor.run()
    visitor.page.wait_for_function("specdemo.page.lanes.speculative.tokens > 20")
    server.kill()
    visitor.wait_phase("error")
    assert "does not answer" in visitor.status()
    before = visitor.text("baseline")
    assert before
    with visitor.page.expect_navigation():
        server.start()
    opened(visitor)
    assert visitor.text("baseline") == before
    assert mark(visitor) == "From before the reload. The run was cut off."
    visitor.run("echo next", max_tokens="12")
    visitor.wait_phase("done")


def test_a_restart_that_nobody_noticed_needs_nothing(server, visit):
    visitor = visit(server.site)
    visitor.page.wait_for_function("specdemo.page.status.ready")  # from then on it asks for nothing
    server.kill()
    server.start()
    visitor.run("echo next")
    visitor.wait_phase("done")
    assert visitor.text("speculative") == "next"
