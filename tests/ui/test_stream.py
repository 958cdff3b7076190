"""A run's updates survive a busy browser, a stop, an error and a closed tab."""

import json
import threading
import time

from specdemo.settings import Settings
from specdemo.ui.stream import FAILED, WAITING_RUNS, Run, Streamer
from tests.ui.fake_host import FakeHost


def run_all(host, **settings):
    run = Run(Settings(**{"prompt": "hello", **settings}))
    return run, [json.loads(update) for update in Streamer(host).updates(run)]


def numbers(update):
    return [delta["seq"] for delta in update["deltas"]]


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_an_update_holds_what_is_new_and_nothing_twice():
    _, updates = run_all(FakeHost(step=0.02))
    assert len(updates) > 6
    assert [n for update in updates for n in numbers(update)] == list(range(len(updates)))


def test_a_browser_can_ask_for_everything_it_missed(host):
    run, updates = run_all(host)
    missed = json.loads(run.missed(0))
    assert missed["run"] == updates[0]["run"]
    assert numbers(missed) == list(range(len(updates)))


def test_bytes_of_an_update_are_bounded_as_the_text_grows():
    _, updates = run_all(FakeHost(step=0.002), max_tokens=1500)
    sizes = [len(json.dumps(update)) for update in updates[5:-2]]
    assert len(sizes) > 12
    third = len(sizes) // 3
    assert max(sizes[-third:]) < 2 * max(sizes[:third])


def test_the_trace_is_whole_after_a_run(host):
    run, _ = run_all(host, max_tokens=50)
    trace = run.trace()
    assert trace.text("baseline") == trace.text("speculative") != ""
    assert trace.check.verdict == "identical"
    assert trace.settings == run.settings.model_copy(update={"drafter": trace.settings.drafter})


def test_stop_ends_the_run_and_keeps_the_trace():
    host = FakeHost(step=0.05)
    run = Run(Settings(prompt="hello"))
    phases = []
    for update in Streamer(host).updates(run):
        phases += [delta["phase"] for delta in json.loads(update)["deltas"][-1:] if "phase" in delta]
        trace = run.trace()
        if trace and trace.text("speculative"):
            run.stop.set()
            run.stop.set()  # twice is as good as once
    assert phases[-1] == "stopped"
    assert {lane[-1].reason for lane in run.trace().lanes.values()} == {"stopped"}
    assert 0 < len(run.trace().rounds("baseline")) < 100


def test_closing_the_generator_stops_decoding_within_a_model_call():
    host = FakeHost(step=0.05)
    updates = Streamer(host).updates(Run(Settings(prompt="hello")))
    next(updates)
    wait_until(lambda: host.running)
    updates.close()
    passes = host.passes
    wait_until(lambda: not host.running)
    assert host.passes <= passes + 1


def test_a_new_run_waits_for_the_model_call_an_abandoned_one_left_behind():
    host = FakeHost(step=0.2)
    streamer = Streamer(host)
    abandoned = streamer.updates(Run(Settings(prompt="hello")))
    next(abandoned)
    wait_until(lambda: host.running)
    abandoned.close()
    for _ in streamer.updates(Run(Settings(prompt="hello", max_tokens=2))):
        pass
    assert host.most_running == 1


def test_a_users_mistake_is_told_in_its_own_words_and_the_next_run_works(host):
    _, updates = run_all(host, prompt="UserError")
    assert updates[-1]["deltas"][-1]["phase"] == "error"
    assert "Shorten it" in updates[-1]["deltas"][-1]["message"]["en"]
    assert run_all(host)[1][-1]["deltas"][-1]["phase"] == "done"


def test_a_bug_is_told_in_general_words_logged_and_what_came_before_stays(host, caplog):
    run, updates = run_all(host, prompt="ZeroDivision")
    assert updates[-1]["deltas"][-1]["message"]["en"] == FAILED
    assert "planted" in caplog.text
    assert run.trace().lanes


def test_a_run_waits_for_loading_and_says_for_what():
    _, updates = run_all(FakeHost(step=0, load_seconds=0.4))
    loading = [d for update in updates for d in update["deltas"] if d.get("phase") == "loading"]
    assert loading[0]["message"]["en"] == "Loading SmolLM2-135M"
    assert updates[-1]["deltas"][-1]["phase"] == "done"


def waiting(streamer, **settings):
    """A run that waits in line, and its updates as they come."""
    run, told = Run(Settings(**{"prompt": "hello", **settings})), []
    thread = threading.Thread(target=lambda: told.extend(map(json.loads, streamer.updates(run))), daemon=True)
    thread.start()
    return run, told, thread


def place(told):
    places = [(d["a"], d["b"]) for update in told for d in update["deltas"] if d.get("phase") == "queued"]
    return places[-1] if places else None


def test_runs_wait_in_line_and_know_their_place_also_when_somebody_leaves():
    host = FakeHost(step=0.05)
    streamer = Streamer(host)
    line = []
    for expected in (None, (1, 1), (2, 2), (3, 3)):
        line.append(waiting(streamer, max_tokens=500))
        wait_until(lambda e=expected: place(line[-1][1]) == e and host.running)
    line[2][0].stop.set()
    wait_until(lambda: place(line[3][1]) == (2, 2))
    line[0][0].stop.set()
    wait_until(lambda: line[1][0].wrote and place(line[3][1]) == (1, 1))
    for run, *_ in line:
        run.stop.set()
    for *_, thread in line:
        thread.join(60)
    assert host.most_running == 1
    assert [told[-1]["deltas"][-1]["phase"] for _, told, _ in line] == ["stopped"] * 4
    assert not line[2][0].wrote


def test_a_full_line_is_said_and_has_room_again():
    streamer = Streamer(FakeHost(step=0.05))
    line = [waiting(streamer) for _ in range(WAITING_RUNS + 1)]
    wait_until(lambda: all(place(told) for _, told, _ in line[1:]))
    (refused,) = [json.loads(update) for update in streamer.updates(Run(Settings(prompt="hello")))]
    assert "Press Run again in a minute" in refused["deltas"][0]["message"]["en"]
    for run, *_ in line:
        run.stop.set()
    for *_, thread in line:
        thread.join(60)
    last = [json.loads(update) for update in streamer.updates(Run(Settings(prompt="hello", max_tokens=2)))][-1]
    assert last["deltas"][-1]["phase"] == "done"


def test_a_run_without_news_says_so_now_and_then(monkeypatch):
    monkeypatch.setattr("specdemo.ui.stream.BEAT_SECONDS", 0.2)
    host = FakeHost(step=1.0)  # the prompt takes two steps
    updates = Streamer(host).updates(Run(Settings(prompt="hello", max_tokens=1)))
    beats = [update["beat"] for update in map(json.loads, updates) if "beat" in update]
    assert len(beats) == len(set(beats)) > 2


def test_stop_works_while_the_model_loads():
    host = FakeHost(step=0, load_seconds=60)
    run = Run(Settings(prompt="hello"))
    threading.Timer(0.2, run.stop.set).start()
    last = [json.loads(update) for update in Streamer(host).updates(run)][-1]
    assert last["deltas"][-1]["phase"] == "stopped"
    assert run.trace() is None


def test_top_lists_of_a_resampled_token_are_those_of_the_refused_draft(host):
    run, _ = run_all(host, max_tokens=100)
    rounds = run.trace().rounds("speculative")
    refused = next(r for r in rounds if r.final and r.final.outcome == "resampled")
    rejected = next(token for token in refused.drafted if token.outcome == "rejected")
    assert run.top_lists("speculative", refused.round, len(refused.drafted)) == rejected.top is not None
    assert run.top_lists("speculative", refused.round, 99) is None
    assert run.top_lists("speculative", 10_000, 0) is None


def test_in_a_tree_they_are_those_of_the_last_refused_sibling_where_the_token_stands(host):
    run, _ = run_all(host, max_tokens=100, drafter="tree")
    refused = [r for r in run.trace().rounds("speculative") if r.final.outcome == "resampled" and r.accepted]
    for round_ in refused:
        last = [t for t in round_.drafted if t.outcome == "rejected" and t.position == round_.final.position][-1]
        assert run.top_lists("speculative", round_.round, len(round_.drafted)) is last.top is not None
    assert len(refused) > 3
