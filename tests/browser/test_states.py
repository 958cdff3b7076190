"""The table of states x actions: what a visitor may find the page in, and what each action does there.

The phase that stands in the table is the one right behind the action. Beside it: an action that is not in the table of
a state changes nothing, Run never begins a second run, and only Clear takes text from the page before another run
writes. What is found in no order anybody thought of, tests/browser/test_unplanned.py looks for.
"""

from __future__ import annotations

import pytest

from tests.browser.conftest import Visitor
from tests.browser.test_unplanned import ACT, BUSY, SETTINGS
from tests.ui.fake_host import SLOW
from tests.ui.test_stream import wait_until

pytestmark = pytest.mark.browser

RUNS = ("run", "run twice", "keys held")
TABLE = {  # state: (Run, Stop, Clear); settings leave every state as it is
    "idle": ("queued", "idle", "idle"),
    "waiting in line": ("queued", "left", "idle"),
    "loading": ("loading", "stopping", "idle"),
    "reading the prompt": ("running", "stopping", "idle"),
    "writing": ("running", "stopping", "idle"),
    "stopping": ("stopping", "stopping", "idle"),
    "left": ("queued", "left", "idle"),
    "stopped": ("queued", "stopped", "idle"),
    "done": ("queued", "done", "idle"),
    "refused": ("queued", "error", "idle"),
    "server away": ("error", "error", "idle"),
}
LOOK = "() => ({run: specdemo.page.feed.run, text: texts(), begun: window.begun})"
COUNT = """() => {
    const {run} = specdemo.page, send = run.send;
    window.begun = 0;
    window.texts = () => Object.values(specdemo.page.lanes).map((lane) => lane.text);
    run.send = (event, data) => { window.begun += event === 'begin'; send(event, data); };
}"""


class Stage:
    """Brings a page into each state of the table."""

    def __init__(self, scripted, visit, query: str) -> None:
        self.host, self.visit, self.scripted = scripted.host, visit, scripted
        self.visitor: Visitor = visit(scripted, query)
        self.count()
        self.others: list[Visitor] = []

    def count(self) -> None:
        self.visitor.page.wait_for_function("window.specdemo?.page.opened && specdemo.page.stage")
        self.visitor.page.evaluate(COUNT)

    def into(self, state: str) -> None:
        self.host.step = 0.01
        getattr(self, "_" + state.replace(" ", "_"))()

    def leave(self) -> None:
        """Back to a page on which nothing goes on."""
        self.host.step = 0.001
        if self.visitor.page.evaluate("specdemo.page.run.lost"):
            self.visitor.page.context.set_offline(False)
            self.visitor.page.wait_for_function("!window.texts")  # it reloads by itself
            self.count()
        self.host.loading = False
        for visitor in (self.visitor, *self.others):
            visitor.page.evaluate("document.querySelector('#sd-clear').click()")
        wait_until(lambda: not self.host.running)

    def _idle(self) -> None:
        self.visitor.page.evaluate(ACT, "clear")

    def _done(self) -> None:
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.wait_phase("done")

    def _waiting_in_line(self) -> None:
        if not self.others:
            self.others.append(self.visit(self.scripted, "?max_tokens=3000"))
        self.host.step = 0.05
        self.others[0].page.evaluate(ACT, "run")
        self.others[0].wait_phase("running")
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.page.wait_for_function("specdemo.page.run.details.a")

    def _loading(self) -> None:
        self.host.loading = True
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.wait_phase("loading")

    def _reading_the_prompt(self) -> None:
        self.host.step = SLOW
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.wait_phase("running")

    def _writing(self) -> None:
        self.host.slows_at = self.host.passes + 16  # by itself: a busy machine could be told too late
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.page.wait_for_function("texts().some((text) => text.length > 20)")
        wait_until(lambda: self.host.step == SLOW)

    def _stopping(self) -> None:
        self._writing()
        self.visitor.page.evaluate(ACT, "stop")

    def _left(self) -> None:
        self.visitor.page.evaluate(ACT, "run, stop")

    def _stopped(self) -> None:
        self._writing()
        self.host.step = 0.03
        self.visitor.page.evaluate(ACT, "stop")
        self.visitor.wait_phase("stopped")

    def _refused(self) -> None:
        self.visitor.run(prompt=" ")
        self.visitor.wait_phase("error")
        self.visitor.page.fill("#sd-prompt textarea", "hello")

    def _server_away(self) -> None:
        self._done()
        self.visitor.page.context.set_offline(True)
        self.visitor.page.evaluate(ACT, "run")
        self.visitor.wait_phase("error")


def kept(before: dict, after: dict) -> bool:
    return all(now.startswith(then) for then, now in zip(before["text"], after["text"], strict=True))


@pytest.mark.parametrize("state", TABLE)
def test_every_action_in_every_state(scripted, visit, state):
    stage = Stage(scripted, visit, "?max_tokens=60")
    page = stage.visitor.page
    run, stop, clear = TABLE[state]
    stage.into(state)
    before = page.evaluate(LOOK)
    phase = stage.visitor.phase()
    for action in SETTINGS:
        assert page.evaluate(ACT, action)["phase"] == phase, action
    if phase in BUSY:
        for action in RUNS:
            assert page.evaluate(ACT, action)["phase"] == run, action
    assert page.evaluate(LOOK)["run"] == before["run"]
    assert page.evaluate(LOOK)["begun"] == before["begun"]
    assert kept(before, page.evaluate(LOOK))
    assert page.evaluate(ACT, "stop")["phase"] == stop
    assert kept(before, page.evaluate(LOOK))
    stage.leave()

    if phase not in BUSY:
        for action in RUNS:
            stage.into(state)
            before = page.evaluate(LOOK)
            assert page.evaluate(ACT, action)["phase"] == run, action
            after = page.evaluate(LOOK)
            assert after["begun"] - before["begun"] == (0 if state == "server away" else 1), action
            assert kept(before, after), action
            stage.leave()

    stage.into(state)
    assert page.evaluate(ACT, "clear")["phase"] == clear
    assert not any(page.evaluate(LOOK)["text"])
    stage.leave()
    assert stage.visitor.page.evaluate(ACT, "run")["phase"] == "queued"
    stage.visitor.wait_phase("done")
