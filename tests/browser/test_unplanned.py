"""Everything that visitors do at an unplanned moment, in any order: states x actions, found by Hypothesis.

Two tabs of one browser act on the page over the scripted host. Whatever they do: one race at a time, a finished text
stays until the next run writes, a page never waits for ever, Stop ends everything, and the next run works.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from playwright.sync_api import Browser

from tests.browser.conftest import DESKTOP, Site, Visitor
from tests.ui.test_stream import wait_until

pytestmark = pytest.mark.browser

BUSY = {"queued", "loading", "running", "stopping"}
OVER = {"idle", "left", "stopped", "done", "error"}
SLOW, QUICK = 0.03, 0.0005  # seconds of a target pass: while the tabs act, and where a run is waited for
TABS = st.integers(0, 1)

# One script for all actions: no waiting for a button to be enabled, which is what is tested here.
ACT = """(action) => {
    const click = (selector) => document.querySelector(selector).click();
    const choose = (id) => {
        const box = document.querySelector(`#${id} select`);
        box.selectedIndex = (box.selectedIndex + 1) % box.options.length;
        if (box.selectedOptions[0].disabled) box.selectedIndex = 0;
        box.dispatchEvent(new Event('change', {bubbles: true}));
    };
    const key = () => document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true}));
    const acts = {
        run: () => click('#sd-run'),
        'run twice': () => { click('#sd-run'); click('#sd-run'); },
        'keys held': () => { for (let i = 0; i < 6; i += 1) key(); },
        'run, stop': () => { click('#sd-run'); click('#sd-stop'); },
        'stop, run': () => { click('#sd-stop'); click('#sd-run'); },
        'clear, run': () => { click('#sd-clear'); click('#sd-run'); },
        stop: () => click('#sd-stop'),
        clear: () => click('#sd-clear'),
        pair: () => choose('sd-pair'),
        drafter: () => choose('sd-drafter'),
        rival: () => choose('sd-rival'),
        mode: () => choose('sd-mode'),
        language: () => click('[data-do=lang]'),
        theme: () => click('[data-do=theme]'),
        example: () => click('#sd-examples label:nth-of-type(2) input'),
        prompt: () => {
            const box = document.querySelector('#sd-prompt textarea');
            box.value += ' and';
            box.dispatchEvent(new Event('input', {bubbles: true}));
        },
        trace: () => click('[data-do=download]'),
    };
    acts[action]();
    const {run} = specdemo.page;
    return {shown: run.shown, phase: run.phase};
}"""
PRESSES = ("run", "run twice", "keys held", "run, stop", "stop, run", "clear, run")
SETTINGS = ("pair", "drafter", "rival", "mode", "language", "theme", "example", "prompt", "trace")
LOOK = """() => {
    const {run, lanes} = specdemo.page;
    return {shown: run.shown, phase: run.phase, mark: run.kept.mark,
            texts: Object.values(lanes).map((lane) => lane.text)};
}"""


class Unplanned(RuleBasedStateMachine):
    browser: Browser
    site: Site

    @initialize()
    def open_two_tabs(self) -> None:
        self.host = self.site.host
        self.host.step = SLOW
        self.host.most_running = self.host.running
        self.context = self.browser.new_context(viewport=DESKTOP)
        self.tabs = [Visitor(self.context, self.site) for _ in range(2)]
        for tab in self.tabs:
            self.opened(tab)
        self.written: list[dict | None] = [None, None]  # a result that has to stay: of which run, and its texts

    def opened(self, tab: Visitor) -> None:
        tab.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")

    def look(self, tab: int) -> dict:
        return self.tabs[tab].page.evaluate(LOOK)

    @rule(tab=TABS, action=st.sampled_from(PRESSES))
    def press(self, tab: int, action: str) -> None:
        if action == "clear, run":
            self.written[tab] = None
        self.tabs[tab].page.evaluate(ACT, action)

    @rule(tab=TABS, action=st.sampled_from(SETTINGS))
    def change_something(self, tab: int, action: str) -> None:
        self.tabs[tab].page.evaluate(ACT, action)

    @rule(milliseconds=st.sampled_from([20, 150, 400]))
    def time_passes(self, milliseconds: int) -> None:
        self.tabs[0].page.wait_for_timeout(milliseconds)

    @rule(tab=TABS)
    def stop(self, tab: int) -> None:
        self.tabs[tab].page.evaluate(ACT, "stop")
        self.tabs[tab].wait_phase(*OVER)
        self.keep(tab)

    @rule(tab=TABS)
    def clear(self, tab: int) -> None:
        self.written[tab] = None
        assert self.tabs[tab].page.evaluate(ACT, "clear") == {"shown": None, "phase": "idle"}
        assert not any(self.look(tab)["texts"])

    @rule(tab=TABS)
    def wait_for_the_end(self, tab: int) -> None:
        self.host.step = QUICK
        self.tabs[tab].wait_phase(*OVER)
        self.host.step = SLOW
        self.keep(tab)

    def keep(self, tab: int) -> None:
        now = self.look(tab)
        self.written[tab] = now if any(now["texts"]) and now["phase"] in OVER else None

    @rule(tab=TABS, away=st.booleans())
    def reload(self, tab: int, away: bool) -> None:
        page, before = self.tabs[tab].page, self.look(tab)
        if away:
            page.goto("about:blank")
            page.go_back()
        else:
            page.reload()
        self.opened(self.tabs[tab])
        after = self.look(tab)
        assert after["phase"] == "idle"
        if self.written[tab] and before["shown"] == self.written[tab]["shown"]:
            assert after["texts"] == before["texts"]
        assert all(new.startswith(old) for old, new in zip(before["texts"], after["texts"], strict=True))
        assert bool(after["mark"]) == any(after["texts"])
        self.keep(tab)

    @rule(tab=TABS)
    def follow_a_link(self, tab: int) -> None:
        self.tabs[tab].page.goto(self.site.address + "?gamma=3&max_tokens=64")
        self.opened(self.tabs[tab])
        self.written[tab] = None
        assert not any(self.look(tab)["texts"])

    @invariant()
    def one_race_at_a_time(self) -> None:
        assert self.host.most_running <= 1

    @invariant()
    def what_was_written_stays_until_the_next_run_writes(self) -> None:
        for tab, written in enumerate(self.written):
            now = self.look(tab)
            assert now["phase"] in BUSY | OVER
            if written and now["shown"] == written["shown"]:
                assert now["texts"] == written["texts"]
            elif written:  # the next one wrote
                assert now["shown"]
                assert any(now["texts"]) or now["phase"] in OVER

    def teardown(self) -> None:
        if not hasattr(self, "tabs"):
            return
        try:
            for tab in self.tabs:
                if tab.phase() in BUSY:
                    tab.page.evaluate(ACT, "stop")
                tab.wait_phase(*OVER)
            wait_until(lambda: not self.host.running)  # nobody has left a run behind
            self.host.step = QUICK
            for tab in self.tabs:
                tab.page.evaluate(ACT, "run")
                tab.wait_phase("done")
                drafted = tab.page.evaluate("specdemo.page.lanes.speculative.text || specdemo.page.lanes.baseline.text")
                assert drafted
                # A page that is left in the middle of a stream complains of that.
                assert [c for c in tab.complaints if "AbortError" not in c and "errored out" not in c] == []
            assert self.host.most_running <= 1
        finally:
            self.context.close()


def test_whatever_visitors_do_one_run_goes_on_nothing_is_lost_and_the_next_run_works(scripted, browser):
    machine = type("Machine", (Unplanned,), {"browser": browser, "site": scripted})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=4,
            stateful_step_count=12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # a failing example of a browser takes too long to shrink
            suppress_health_check=list(HealthCheck),
        ),
    )
