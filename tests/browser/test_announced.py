"""What a screen reader is told without being asked: how a run begins and ends, and errors, once each."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser

# Every change in a live region of the page, with how urgent it is.
HEAR = """() => {
    window.heard = [];
    const how = (node) => {
        const region = node.closest('[aria-live], [role=status], [role=alert], [role=log]');
        if (!region || !region.checkVisibility() || region.closest('[inert], [aria-hidden=true]')) return 'off';
        return region.ariaLive ?? {status: 'polite', alert: 'assertive', log: 'polite'}[region.role];
    };
    new MutationObserver((changes) => {
        for (const {target} of changes) {
            const node = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
            const live = node ? how(node) : 'off';
            if (live !== 'off') heard.push([live, node.textContent.trim()]);
        }
    }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


@pytest.fixture(autouse=True)
def pace(scripted):
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005


def heard(visitor: Visitor) -> list[list[str]]:
    return [entry for entry in visitor.page.evaluate("heard.splice(0)") if entry[1]]


def test_a_run_is_announced_when_it_begins_and_when_it_ends_and_never_token_by_token(scripted, visit):
    visitor = visit(scripted)
    visitor.page.wait_for_function("specdemo.page.status.ready")
    visitor.page.evaluate(HEAR)
    visitor.run()
    visitor.wait_phase("done")
    told = heard(visitor)
    sentences = [sentence for _, sentence in told]
    assert sentences[-1] == "Done."
    assert "Decoding" in sentences
    assert len(set(sentences)) == len(sentences) <= 5
    assert {live for live, _ in told} == {"polite"}


def test_an_error_is_announced_at_once_and_once(scripted, visit):
    visitor = visit(scripted)
    visitor.page.wait_for_function("specdemo.page.status.ready")
    visitor.page.evaluate(HEAR)
    visitor.run("UserError")
    visitor.wait_phase("error")
    visitor.page.evaluate("specdemo.page.run.show()")  # drawn again, not said again
    told = heard(visitor)
    assert told[-1] == ["assertive", "The prompt has 9,000 tokens, but the model reads 8,192. Shorten it."]
    assert [live for live, _ in told].count("assertive") == 1


def test_how_far_something_is_is_not_announced_again_and_again(scripted, visit):
    visitor = visit(scripted)
    visitor.page.wait_for_function("specdemo.page.status.ready")
    visitor.page.evaluate(HEAR)
    load = """(told) => {
        Object.assign(specdemo.page.run, {phase: 'loading', details: {message: {en: told, ja: told}}});
        specdemo.page.run.show();
    }"""
    for done in (10, 20, 30):
        visitor.page.evaluate(load, f"Loading, {done} of 93 MB")
    assert len(heard(visitor)) == 1
    assert "30 of 93 MB" in visitor.status()
