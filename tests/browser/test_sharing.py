"""Copying and links: what is copied is what was meant, wherever the page is open, and a link holds it all."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import HARD, Site

pytestmark = pytest.mark.browser

# Neither way of copying, as in a browser whose owner forbids both.
NO_COPYING = """
    Object.defineProperty(navigator, 'clipboard', {get: () => undefined});
    document.execCommand = () => false;
"""
READ = "navigator.clipboard.readText()"
COPIED = "document.querySelector('{} [data-t]').textContent === '{}'"
LONG = "🌊👩\u200d🚀 \"quotes\" 'and' & <b> %23 #? 日本語\n\ttab, \\ + = العربية\u0301\ufeff " * 2000
RANDOM = "".join(chr(0x4E00 + (i * i * 7919 + i * 104729) % 20000) for i in range(100_000))


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005


@pytest.fixture
def elsewhere(scripted):
    """The scripted page as another machine would open it: plain http, an address that is not this machine's own."""
    return Site(scripted.address.replace("127.0.0.1", "specdemo.test"), host=scripted.host)


def prompt_is(visitor, prompt: str) -> None:
    visitor.page.wait_for_function(
        "(prompt) => document.querySelector('#sd-prompt textarea').value === prompt", arg=prompt
    )


def long_address(visitor) -> str:
    visitor.page.wait_for_function("location.hash.length > 10")
    return visitor.page.url


def test_copying_works_over_plain_http_from_another_machine(elsewhere, visit):
    visitor = visit(elsewhere)
    assert not visitor.page.evaluate("isSecureContext")
    visitor.page.evaluate(
        "document.addEventListener('paste', (e) => (window.pasted = e.clipboardData.getData('text/plain')))"
    )

    def pasted() -> str:
        visitor.page.evaluate("window.pasted = null")
        visitor.page.keyboard.press("Control+v")
        visitor.page.wait_for_function("window.pasted !== null")
        return visitor.page.evaluate("window.pasted")

    visitor.page.fill("#sd-prompt textarea", "echo " + HARD)
    visitor.page.wait_for_function("location.search.includes('prompt=')")
    visitor.page.click('[data-do="link"]')
    visitor.page.wait_for_function(COPIED.format('[data-do="link"]', "Copied"))
    assert pasted() == visitor.page.url
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.click('[data-copy="speculative"]')
    visitor.page.wait_for_function(COPIED.format('[data-copy="speculative"]', "Copied"))
    assert pasted() == HARD
    visitor.page.wait_for_function(COPIED.format('[data-copy="speculative"]', "Copy text"))
    assert visitor.page.evaluate("document.activeElement.dataset.copy") == "speculative"


@pytest.mark.parametrize(("language", "why"), [("en", "does not let the page copy"), ("ja", "コピーできません")])
def test_where_a_browser_lets_nobody_copy_the_text_is_shown_selected(scripted, visit, language, why):
    visitor = visit(scripted)
    visitor.page.evaluate(NO_COPYING)
    if language == "ja":
        visitor.page.click('[data-do="lang"]')
    visitor.run("echo " + HARD)
    visitor.wait_phase("done")
    chosen = "(() => { const f = document.activeElement; return f.value.slice(f.selectionStart, f.selectionEnd); })()"
    for button, content in (('[data-do="link"]', visitor.page.url), ('[data-copy="baseline"]', HARD)):
        visitor.page.click(button)
        dialog = visitor.page.locator("dialog[open]")
        assert why in dialog.inner_text()
        assert visitor.page.evaluate(chosen) == content
        assert visitor.page.evaluate(f"!({COPIED.format(button, 'Copied')})")
        visitor.screenshot(f"copy-by-hand-{language}")
        visitor.page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    visitor.page.click("#sd-clear")
    visitor.page.click('[data-copy="baseline"]')
    assert visitor.page.inner_text('[data-copy="baseline"]') == {"en": "No text yet", "ja": "まだ空です"}[language]


@pytest.mark.parametrize("prompt", [LONG, RANDOM], ids=["hard", "random"])
def test_a_prompt_of_any_length_travels_behind_the_address_and_never_to_the_server(scripted, visit, prompt):
    visitor = visit(scripted, "?temperature=0.5")
    visitor.page.fill("#sd-prompt textarea", prompt)
    address = long_address(visitor)
    assert len(prompt) >= 100_000
    assert "prompt=" not in address.split("#")[0]
    other = visit(Site(address, host=scripted.host))
    prompt_is(other, prompt)
    assert other.page.input_value("#sd-temperature input[type=number]") == "0.5"
    other.page.reload()
    other.page.wait_for_function("window.specdemo?.page.arrived")
    prompt_is(other, prompt)
    assert not any("#" in url or "prompt" in url for url in other.requests)


def test_run_sends_a_prompt_that_came_behind_the_address(scripted, visit):
    visitor = visit(scripted)
    visitor.page.fill("#sd-prompt textarea", "echo " + HARD * 20)
    other = visit(Site(long_address(visitor), host=scripted.host))
    prompt_is(other, "echo " + HARD * 20)
    other.run(max_tokens="30")
    other.wait_phase("done")
    assert other.text("baseline")
    assert (HARD * 20).startswith(other.text("baseline"))


def test_a_short_prompt_stays_readable_in_the_address(scripted, visit):
    visitor = visit(scripted)
    visitor.page.fill("#sd-prompt textarea", "x" * 2000)
    long_address(visitor)
    visitor.page.fill("#sd-prompt textarea", "short")
    visitor.page.wait_for_function("location.search === '?prompt=short' && !location.hash")


@pytest.mark.parametrize("damage", ["cut", "changed", "junk", "empty", "no text"])
def test_a_damaged_link_is_refused_in_a_sentence_and_the_page_opens(scripted, visit, damage):
    visitor = visit(scripted)
    default = visitor.page.input_value("#sd-prompt textarea")
    visitor.page.fill("#sd-prompt textarea", LONG)
    before, fragment = long_address(visitor).split("#prompt=")
    broken = {
        "cut": fragment[:-40],
        "changed": fragment[:50] + ("A" if fragment[50] != "A" else "B") + fragment[51:],
        "junk": "%%%",
        "empty": "",
        "no text": "eJz7DwABAQEA",
    }[damage]
    other = visit(Site(f"{before}#prompt={broken}", host=scripted.host))
    other.page.wait_for_function("specdemo.page.arrived")
    assert "damaged" in other.status()
    prompt_is(other, default)
    other.page.click('[data-do="lang"]')
    assert "壊れています" in other.status()
    other.run()
    other.wait_phase("done")
    assert not [said for said in other.complaints if "favicon" not in said]


def test_a_prompt_too_long_for_any_link_is_said(scripted, visit):
    visitor = visit(scripted, permissions=["clipboard-read", "clipboard-write"])
    visitor.page.evaluate("delete window.CompressionStream")
    visitor.page.fill("#sd-prompt textarea", "x" * 2000)
    visitor.page.click('[data-do="link"]')
    visitor.page.wait_for_function(COPIED.format('[data-do="link"]', "Copied"))
    assert "too long for a link" in visitor.status()
    assert "#" not in visitor.page.evaluate(READ)


def test_a_link_opened_in_the_same_tab_is_followed(scripted, visit):
    visitor = visit(scripted)
    visitor.page.fill("#sd-prompt textarea", LONG)
    address = long_address(visitor)
    visitor.page.fill("#sd-prompt textarea", "")
    visitor.page.evaluate("(address) => (location.hash = address.split('#')[1])", address)
    prompt_is(visitor, LONG)


def test_a_theme_that_the_address_asks_for_stays_in_it_until_the_visitor_chooses(scripted, visit):
    visitor = visit(scripted, "?__theme=dark&temperature=0.5")
    dark = "document.body.classList.contains('dark')"
    visitor.page.wait_for_function("specdemo.page.keep && specdemo.page.arrived")
    visitor.page.fill("#sd-prompt textarea", "changed")
    visitor.page.wait_for_function("location.search.includes('prompt=changed')")
    assert "__theme=dark" in visitor.page.url
    visitor.page.reload()
    visitor.page.wait_for_function("window.specdemo?.page.arrived && specdemo.page.stage")
    assert visitor.page.evaluate(dark)
    visitor.page.click('[data-do="theme"]')
    assert "__theme" not in visitor.page.url
    visitor.page.reload()
    visitor.page.wait_for_function("window.specdemo?.page.arrived && specdemo.page.stage")
    assert not visitor.page.evaluate(dark)
    # Somebody else's link goes before what this browser remembers.
    visitor.page.goto(scripted.address + "?__theme=dark")
    visitor.page.wait_for_function("window.specdemo?.page.arrived && specdemo.page.stage")
    assert visitor.page.evaluate(dark)


def test_an_example_is_marked_only_while_the_prompt_is_it(scripted, visit):
    visitor = visit(scripted)
    marked = visitor.page.locator("#sd-examples label.selected")
    assert marked.inner_text() == "Maths"
    prompt = visitor.page.input_value("#sd-prompt textarea")
    visitor.page.fill("#sd-prompt textarea", prompt + " Now.")
    marked.wait_for(state="detached")
    visitor.page.fill("#sd-prompt textarea", prompt)
    marked.wait_for()
    visitor.page.click("#sd-examples label:has-text('Story')")
    visitor.page.wait_for_function("document.querySelector('#sd-prompt textarea').value.startsWith('Tell')")
    assert marked.inner_text() == "Story"
    other = visit(scripted, "?prompt=Mine")
    prompt_is(other, "Mine")
    other.page.locator("#sd-examples label.selected").wait_for(state="detached")


def test_opening_the_api_page_asks_for_nothing_that_is_missing(scripted, visit):
    visitor = visit(scripted)
    visitor.page.fill("#sd-prompt textarea", LONG)
    address = long_address(visitor)
    with visitor.page.expect_response(re.compile("mcp/schema")) as answer:
        visitor.page.click("footer button.show-api")
    assert answer.value.status < 400
    assert not answer.value.ok  # else Gradio would offer a server of tools that is not there
    assert not visitor.complaints
    visitor.page.locator(".api-docs").wait_for()
    visitor.page.mouse.click(5, 400)  # beside it, which closes it
    visitor.page.locator(".api-docs").wait_for(state="detached")
    visitor.page.wait_for_function("(address) => location.href === address", arg=address)
