"""A race run again by its trace: the same draws, and the same sizes where they were chosen live."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

from specdemo.errors import UserError
from specdemo.events import Lane, Trace
from specdemo.models.pairs import OWN_PAIR
from specdemo.settings import Settings


def read_trace(file: Path) -> Trace:
    """Raises UserError for a file that cannot be read, or that holds no trace or no token to compare."""
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    try:
        trace = Trace.from_json(content.removeprefix(BOM_UTF8))
    except ValueError as error:
        raise UserError(f"{file} is no trace. Write one: python -m specdemo run PROMPT --trace FILE") from error
    Settings.checked(**trace.settings.model_dump())
    if not any(trace.rounds(lane) for lane in trace.lanes):
        raise UserError(
            f"{file} is the trace of a race in which nothing was written: there is nothing to compare with."
        )
    return trace


def pair_of(trace: Trace) -> str:
    """The pair of the registry that a race ran on. Raises UserError where it was a pair of somebody's own."""
    if trace.settings.pair == OWN_PAIR:
        named = [info.name for info in (trace.target, trace.draft, *trace.heads.values()) if info]
        raise UserError(f"This race ran on models that no pair names ({', '.join(named)}). Give --target and the rest.")
    return trace.settings.pair


def compared(earlier: Trace, again: Trace) -> tuple[bool, str]:
    """Whether every lane wrote what it wrote before, and a sentence that says it. Of a lane that was stopped, or ended
    in an error, only what it wrote is compared."""
    parted = {lane: at for lane in earlier.lanes if (at := _parted(earlier, again, lane)) is not None}
    if not parted:
        return True, "Every lane wrote the text of the trace again."
    where = ", ".join(f"{lane} from token {at + 1} on" for lane, at in parted.items())
    parts = ("target", "draft", "heads", "machine", "costs")
    others = [name for name in parts if getattr(earlier, name) != getattr(again, name)]
    why = f" What is not the trace's own: {', '.join(others)}." if others else ""
    return False, f"Another text than the trace's: {where}.{why}"


def _parted(earlier: Trace, again: Trace, lane: Lane) -> int | None:
    """The number of the first token that differs, from 0."""
    before, now = ([t.id for r in trace.rounds(lane) for t in r.emitted] for trace in (earlier, again))
    end = earlier.lanes[lane][-1] if earlier.lanes[lane] else None
    if end is None or end.type != "end" or end.reason in ("stopped", "error"):
        now = now[: len(before)]
    common = min(len(before), len(now))
    at = next((i for i in range(common) if before[i] != now[i]), common)
    return None if before == now else at
