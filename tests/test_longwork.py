"""Work that takes long says how far it is, keeps what it has made, and ends when it is told to."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from rich.console import Console

from specdemo.errors import UserError
from specdemo.journal import Journal, place
from specdemo.longwork import Interrupted, Work, duration, resumable, watched


class Piece(BaseModel):
    number: int


class Clock:
    """Stands where it is put."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(out: Console) -> list[str]:
    return out.file.getvalue().splitlines()


def piped() -> Console:
    return Console(file=io.StringIO(), width=150)


def test_without_a_terminal_a_line_comes_every_ten_seconds() -> None:
    out, clock = piped(), Clock()
    work = Work(out, clock)
    for second in range(31):
        clock.now = float(second)
        work(f"piece {second} [of 30]", second / 100)
    assert lines(out) == [
        "0 %: piece 0 [of 30]",
        "10 %, 2 min left: piece 10 [of 30]",
        "20 %, 80 s left: piece 20 [of 30]",
        "30 %, 70 s left: piece 30 [of 30]",
    ]


def test_the_time_left_goes_by_what_was_done_since_work_was_taken_up_again() -> None:
    out, clock = piped(), Clock()
    work = Work(out, clock)
    work("on", 0.5)
    clock.now = 60.0
    work("on", 0.75)
    clock.now = 120.0
    work("another kind of work", 0.0)
    assert lines(out) == ["50 %: on", "75 %, 60 s left: on", "0 %: another kind of work"]


def test_what_comes_before_the_work_is_no_part_of_its_pace() -> None:
    out, clock = piped(), Clock()
    work = Work(out, clock)
    work("warming up", None)
    clock.now = 100.0
    work("on", 0.0)
    clock.now = 110.0
    work("on", 0.5)
    assert lines(out) == ["warming up", "0 %: on", "50 %, 10 s left: on"]


def test_durations_are_as_long_as_they_need_to_be() -> None:
    assert [duration(seconds) for seconds in (5.4, 89, 95, 3600, 7800)] == [
        "5 s",
        "89 s",
        "2 min",
        "60 min",
        "2 h 10 min",
    ]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_work_where_it_next_speaks_and_the_command_says_how_to_go_on(number: int, status: int) -> None:
    out, before, done = piped(), signal.getsignal(number), []

    def command() -> None:
        with resumable(out, "Go on with --resume."), watched(out) as work:
            for i in work.each(range(9), 9, "piece"):
                if i == 2:
                    os.kill(os.getpid(), number)
                done.append(i)

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == status
    assert done == [0, 1, 2]
    assert lines(out)[-1] == "Stopped. Go on with --resume."
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with watched(piped()) as work:
            os.kill(os.getpid(), signal.SIGINT)
            work("on", 0.1)
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_a_terminal_the_bar_stays() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=120)
    with watched(out) as work:
        work("piece 1", 0.25)
        work("piece 2", 0.5)
    assert "50 %" in out.file.getvalue()
    assert "piece 2" in out.file.getvalue()


def test_stopped_work_does_nothing_more() -> None:
    work = Work()
    work.check()
    work.stop.set()
    with pytest.raises(Interrupted):
        work("more", 0.1)


# --- The journal ---

HEAD = {"prompts": "abc", "machine": {"threads": 2}}


def journal(file: Path, resume: bool = True, head: dict = HEAD) -> Journal[Piece]:
    return Journal(file, Piece, head, resume)


def test_a_record_is_on_the_disk_when_it_is_made(tmp_path: Path) -> None:
    kept = journal(tmp_path / "new" / "j.jsonl", resume=False)
    for number in range(3):
        kept.append(Piece(number=number))
        assert (tmp_path / "new" / "j.jsonl").read_text().endswith(f'{{"number":{number}}}\n')


def test_a_journal_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    kept = journal(file)
    kept.append(Piece(number=1))
    kept.close()
    with file.open("a") as stream:
        stream.write('{"numb')  # killed here
    again = journal(file)
    assert again.records == [Piece(number=1)]
    again.append(Piece(number=2))
    again.close()
    assert journal(file).records == [Piece(number=1), Piece(number=2)]


def test_without_resume_a_new_journal_begins_and_the_old_one_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    journal(file).append(Piece(number=1))
    assert journal(file, resume=False).records == []
    assert '{"number":1}' in (tmp_path / "j.jsonl.old").read_text()


def test_a_journal_of_other_work_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    journal(file).append(Piece(number=1))
    text = file.read_text()
    with pytest.raises(UserError, match="not the same prompts, machine"):
        journal(file, head={"prompts": "abd", "machine": {"threads": 4}})
    for wrong in ("hello\n", '{"journal": 1}\n', text + "[]\n"):
        file.write_text(wrong)
        with pytest.raises(UserError, match=r"j\.jsonl"):
            journal(file)
        assert file.read_text() == wrong


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        journal(tmp_path / "file" / "j.jsonl")


def test_a_journal_lies_beside_the_result_or_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEMO_CACHE", str(tmp_path))
    assert place(Path("w"), Path("r.json"), "bench") == Path("w")
    assert place(None, Path("r.json"), "bench") == Path("r.runs.jsonl")
    assert place(None, None, "tune") == tmp_path / "tune.runs.jsonl"
