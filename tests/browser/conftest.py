"""A headless browser, the real app in a process of its own, and the page over a scripted host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from specdemo.ui.page import build
from tests.serving import free_port, launched
from tests.ui.fake_host import FakeHost

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "screenshots"
CHROMIUM = os.environ.get("SPECDEMO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP specdemo.test 127.0.0.1",  # a name that is no secure context, as another machine's page
]
PATIENCE = 120_000  # milliseconds: a busy machine is no failure
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 780}
HARD = """<b>x</b> & <|im_end|> <script>document.title = 'broken'</script>
\tdef f():

        return '🌊👩‍🚀日本語'   # three blanks
<img src=x onerror="document.title = 'broken'">
"""

# Contrast by WCAG 2: colours are painted on a canvas, background over background, and read back.
CONTRAST = """(selector) => {
    const node = document.querySelector(selector);
    const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const backgrounds = [];
    for (let at = node; at; at = at.parentElement) backgrounds.unshift(getComputedStyle(at).backgroundColor);
    const paint = (colours) => {
        pen.fillStyle = '#fff';
        pen.fillRect(0, 0, 1, 1);
        for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = light(paint(backgrounds));
    const ink = light(paint([...backgrounds, getComputedStyle(node).color]));
    return (Math.max(back, ink) + 0.05) / (Math.min(back, ink) + 0.05);
}"""


@dataclass
class Site:
    """A served page: its address, and what stands behind it."""

    address: str
    host: FakeHost | None = None
    pid: int | None = None


class Visitor:
    """A page in a context of its own, with what it asked for and what it complained about."""

    def __init__(self, context: BrowserContext, site: Site, query: str = "") -> None:
        context.set_default_timeout(PATIENCE)
        self.page: Page = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.goto(site.address + query)
        self.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")

    def phase(self) -> str:
        return self.page.evaluate("specdemo.page.phase")

    def wait_phase(self, *phases: str, seconds: float = 120) -> None:
        wanted = str(list(phases))
        self.page.wait_for_function(f"{wanted}.includes(specdemo.page.phase)", timeout=1000 * seconds)

    def unfold(self) -> None:
        """Settings are folded away while a run is shown."""
        if self.page.get_attribute("#sd-fold", "aria-expanded") == "false":
            self.page.click("#sd-fold")

    def run(self, prompt: str | None = None, **settings: str) -> None:
        if settings:
            self.unfold()
        if prompt is not None:
            self.page.fill("#sd-prompt textarea", prompt)
        for name, value in settings.items():
            self.page.fill(f"#sd-{name.replace('_', '-')} input[type=number]", value)
            self.page.keyboard.press("Tab")
        self.page.click("#sd-run")

    def text(self, lane: str) -> str:
        """What the lane's element holds, dropped drafts left out."""
        return self.page.evaluate(
            """(lane) => {
                const copy = document.querySelector(`.sd-${lane} .sd-text`).cloneNode(true);
                copy.querySelectorAll('.dropped, .sd-empty').forEach((node) => node.remove());
                return copy.textContent;
            }""",
            lane,
        )

    def status(self) -> str:
        return self.page.inner_text("#sd-status-text")

    def screenshot(self, name: str, full: bool = True) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here; SPECDEMO_CHROMIUM may name one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser):
    """visit(site, query, **context options) opens a page as a visitor of its own."""
    contexts: list[BrowserContext] = []

    def open_page(site: Site, query: str = "", **options) -> Visitor:
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **options}))
        return Visitor(contexts[-1], site, query)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def scripted() -> Iterator[Site]:
    """The page over a host that replays a text. Started before the browser, whose loop would be in its way."""
    host = FakeHost()
    host.prepare("smollm2-135m")
    with launched(build(host)) as address:
        yield Site(address, host=host)


@pytest.fixture(scope="module")
def real() -> Iterator[Site]:
    """The app as a user starts it, with the default pair."""
    port = free_port()
    log = (SCREENSHOTS / "app.log").open("w") if SCREENSHOTS.exists() else subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        _wait_for(address, process)
        yield Site(address, pid=process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(address: str, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"app.py ended with {process.returncode}"
        try:
            if httpx.get(address).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("app.py did not start serving")
