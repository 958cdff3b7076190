"""axe-core finds nothing serious on the page, however it looks and whatever it is doing."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import DESKTOP, Visitor

pytestmark = pytest.mark.browser

PROJECTOR = {"width": 1920, "height": 1080}
PHONE = {"width": 380, "height": 800}
LOOKS = {
    "desktop": {},
    "dark": {"dark": True, "query": "?drafter=tree&rival=draft-model"},
    "japanese": {"stored": {"language": "ja"}},
    "projector": {"viewport": PROJECTOR, "stored": {"projector": "true"}},
    "dark projector": {"dark": True, "viewport": PROJECTOR, "stored": {"projector": "true"}},
    "phone": {"viewport": PHONE, "has_touch": True},
    "one lane": {"query": "?mode=baseline"},
}


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.01
    yield
    scripted.host.step = 0.01


@pytest.fixture(scope="module")
def axe() -> Axe:
    return Axe()


def faults(axe: Axe, visitor: Visitor) -> list[str]:
    """What is serious or critical: the rule, the element, and why."""
    rules = axe.run(visitor.page).response["violations"]
    return [
        f"{rule['id']} at {node['target']}: {node['failureSummary']}"
        for rule in rules
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious(scripted, visit, axe, look):
    visitor = opened(scripted, visit, **LOOKS[look])
    page = visitor.page
    found = {"before a run": faults(axe, visitor)}
    if page.locator("#sd-more").is_visible():
        page.click("#sd-more > button")
        page.wait_for_selector("#sd-chat")
        found["more settings"] = faults(axe, visitor)

    visitor.run()
    page.wait_for_function("Object.values(specdemo.page.lanes).some((lane) => lane.tokens > 8)")
    scripted.host.step = 0.3  # stands nearly still
    found["while streaming"] = faults(axe, visitor)
    scripted.host.step = 0.001
    visitor.wait_phase("done")
    found["done"] = faults(axe, visitor)

    page.click(f".sd-{'baseline' if look == 'one lane' else 'speculative'} .tok[data-key]")
    page.wait_for_selector("#sd-card.pinned")
    found["a card is kept"] = faults(axe, visitor)
    page.keyboard.press("Escape")

    visitor.run("UserError")
    visitor.wait_phase("error")
    found["an error"] = faults(axe, visitor)
    assert not {state: found for state, found in found.items() if found}


def opened(site, visit, query="", dark=False, stored=None, viewport=DESKTOP, **options) -> Visitor:
    """A page with what its browser remembers of an earlier visit. Nothing moves: axe would see colours on their way."""
    scheme = "dark" if dark else "light"
    visitor = visit(site, query, viewport=viewport, color_scheme=scheme, reduced_motion="reduce", **options)
    if stored:
        for name, value in stored.items():
            visitor.page.evaluate("([name, value]) => localStorage.setItem(`specdemo-${name}`, value)", [name, value])
        visitor.page.reload()
        visitor.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")
    return visitor
