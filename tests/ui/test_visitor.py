"""A visitor has one run at a time, whatever comes twice or too late."""

import copy
import json

import pytest

from specdemo.errors import UserError
from specdemo.settings import Settings
from specdemo.ui.stream import Run, Streamer
from specdemo.ui.visitor import Visitor


def a_run(name, **settings):
    return Run(Settings(**{"prompt": "hello", **settings}), name)


def decode(host, run):
    for _ in Streamer(host).updates(run):
        pass


def test_a_second_run_is_refused_while_one_goes_on(host):
    visitor, first = Visitor(), a_run("1")
    visitor.begin(first)
    with pytest.raises(UserError, match="Press Stop first"):
        visitor.begin(a_run("2"))
    assert not first.stop.is_set(), "the first one is not harmed"
    decode(host, first)
    visitor.begin(a_run("3"))


def test_a_run_behind_a_stopped_one_is_let_in_even_if_it_overtakes_the_stop():
    visitor, first, second = Visitor(), a_run("1"), a_run("2")
    visitor.begin(first)
    visitor.begin(second, after="1")
    assert first.stop.is_set()
    visitor.halt("1")
    assert not second.stop.is_set()


def test_a_stop_that_comes_before_its_run_counts(host):
    visitor, run = Visitor(), a_run("1")
    visitor.halt("1")
    visitor.begin(run)
    updates = [json.loads(update) for update in Streamer(host).updates(run)]
    assert [delta["phase"] for update in updates for delta in update["deltas"]] == ["stopped"]


def test_questions_about_the_last_text_are_answered_until_the_next_run_writes(host):
    visitor, wrote, silent = Visitor(), a_run("1", max_tokens=8), a_run("2")
    visitor.begin(wrote)
    decode(host, wrote)
    visitor.begin(silent)
    silent.stop.set()
    visitor.begin(a_run("3"))
    assert json.loads(visitor.answer({"ask": "trace", "run": "1"}))["trace"]
    assert json.loads(visitor.answer({"ask": "trace", "run": "2"}))["unknown"]
    assert json.loads(visitor.answer({"ask": "missed", "run": "3", "from": 0, "id": 7}))["id"] == 7


def test_every_session_begins_anew():
    visitor = Visitor()
    visitor.begin(a_run("1"))
    copy.deepcopy(visitor).begin(a_run("2"))
