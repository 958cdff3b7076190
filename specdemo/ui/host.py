"""What the page needs from whoever owns the models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from specdemo.events import RaceEvent
from specdemo.settings import Settings


class _Info(BaseModel):
    model_config = ConfigDict(frozen=True)


class Status(_Info):
    """Where loading stands. `fraction` is None where progress cannot be measured; `error` is a sentence."""

    message: str
    fraction: float | None = None
    ready: bool = False
    error: str = ""


class PairInfo(_Info):
    """A target and its draft. One that cannot run here is shown disabled with its reason."""

    id: str
    label: str
    available: bool = True
    reason: str = ""


class DrafterInfo(_Info):
    """A way to propose tokens. Trees are bounded by depth and nodes, chains by gamma."""

    id: str
    label: str
    hint: str = ""
    is_tree: bool = False


class Host(Protocol):
    """Owns models and device. All methods but `race` return at once."""

    def prepare(self, pair: str) -> None:
        """Start loading a pair in the background; no effect if it is loaded or loading."""

    def status(self) -> Status:
        """The state of the pair that was prepared last."""

    def pairs(self) -> list[PairInfo]: ...

    def drafters(self) -> list[DrafterInfo]: ...

    def headline(self) -> str:
        """What runs on what, in one line."""

    def race(self, settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        """Decode in the calling thread: RaceStart, LaneEvents, RaceEnd.

        Raises UserError for what a visitor can mend. Setting `stop` ends every lane with reason "stopped" within
        one model call; RaceEnd still follows.
        """
