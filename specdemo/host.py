"""The one owner of models in a process: loads them in the background, says how far it is, runs races on them."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator, Sequence

import huggingface_hub.constants

from specdemo.drafters import DRAFTERS
from specdemo.errors import UserError
from specdemo.events import RaceEvent
from specdemo.models.device import (
    choose_device,
    choose_dtype,
    dtype_name,
    free_memory,
    is_lost,
    is_out_of_memory,
    release,
    use_cpu_quota,
    workspace_bytes,
)
from specdemo.models.loading import LoadedPair, fetch_pair, load_pair
from specdemo.models.pairs import DEFAULT_PAIR, PAIRS, Pair, find_pair, own_pair, why_not
from specdemo.race import race
from specdemo.settings import Settings
from specdemo.ui.host import DrafterInfo, PairInfo, Status

log = logging.getLogger(__name__)


class Host:
    """Holds one loaded pair at a time. Every method may be called from any thread.

    Models compute in threads that end (one for each load, one for each race), never in a thread that lives on: OpenMP
    keeps a team of workers for every thread that has computed, and with more workers than cores all of them stop
    spinning at barriers, which made a decoding step 40 % slower.

    Args:
        target, draft, heads: a pair of one's own (folders or hub ids; folders of heads), offered beside the registry's
            and loaded first.
        device, dtype: overrides of what this machine would choose ('cpu', 'cuda:1', ...; 'fp32', 'bf16', 'fp16').
    Raises UserError for a device or dtype that is not here.
    """

    def __init__(
        self,
        target: str | None = None,
        draft: str | None = None,
        heads: Sequence[str] = (),
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(self.device, dtype)
        use_cpu_quota()
        own = own_pair(target, draft, heads)
        self._pairs: dict[str, Pair] = ({own.id: own} if own else {}) | PAIRS
        self.first_pair = own.id if own else DEFAULT_PAIR
        self._lock = threading.Lock()  # guards the fields below
        self._wanted: str | None = None
        self._loaded: LoadedPair | None = None
        self._status = Status(message="Nothing is loaded yet", fraction=None, ready=False)
        self._lost = ""  # what to say once a GPU has failed for good
        self._device_lock = threading.Lock()  # loading and racing take turns on the device

    def prepare(self, pair: str) -> None:
        """Start loading a pair in the background; returns at once. Does nothing if it is loaded or on its way."""
        found = find_pair(self._pairs, pair)
        with self._lock:
            if self._lost:
                raise UserError(self._lost)
            if self._wanted == pair and not self._status.error:
                return
            if self._loaded is not None and self._loaded.pair.id == pair:
                self._wanted, self._status = pair, _ready(found, self._loaded.warnings)
                return
            reason = self._why_not(found)
            if reason:
                raise UserError(f"{found.label} cannot run here: it {reason}.")
            self._wanted = pair
            self._status = Status(message=f"Loading {found.label}", fraction=None, ready=False)
        threading.Thread(target=self._load, args=(found,), name=f"load-{pair}", daemon=True).start()

    def status(self) -> Status:
        with self._lock:
            return self._status

    def pairs(self) -> list[PairInfo]:
        return [
            PairInfo(id=pair.id, label=pair.label, available=not reason, reason=reason)
            for pair in self._pairs.values()
            for reason in [self._why_not(pair)]
        ]

    def drafters(self) -> list[DrafterInfo]:
        """Every drafter, those first that the first pair can use."""
        pair = self._pairs[self.first_pair]
        has = pair.has
        kinds = sorted(DRAFTERS.items(), key=lambda item: bool(item[1].missing(has)))
        return [DrafterInfo(id=id, label=kind.label, hint=kind.hint, is_tree=kind.is_tree) for id, kind in kinds]

    def headline(self) -> str:
        """What runs here, in a line."""
        with self._lock:
            loaded = self._loaded
        where = f"{self.device.type} · {dtype_name(self.dtype)}"
        if loaded is None:
            return where
        draft = f" ← {loaded.draft.info.name}" if loaded.draft else ""
        return f"{loaded.target.info.name}{draft} · {where}"

    def race(self, settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        """See `specdemo.race.race`; decoding happens in the calling thread."""
        with self._device_lock:
            with self._lock:
                loaded = self._loaded
                if self._lost:
                    raise UserError(self._lost)
            if loaded is None or loaded.pair.id != settings.pair:
                raise UserError("The pair is not loaded yet. Wait for it, then press Run again.")
            try:
                yield from race(loaded, settings, stop)
            except RuntimeError as error:
                if (explained := self._explained(loaded, error)) is None:
                    raise
                raise explained from error

    def _explained(self, loaded: LoadedPair | None, error: Exception) -> UserError | None:
        """What to say of an error of the device's; None for any other. Leaves what can still be used usable."""
        if loaded and is_out_of_memory(error):
            # The failed frames hold tensors, and so do the caches that wait for the next run.
            traceback.clear_frames(error.__traceback__)
            loaded.forget()
            release(self.device)
            return UserError("The memory is full. Shorten the prompt or the answer, or choose a smaller pair.")
        if is_lost(error):
            first = str(error).strip().split("\n")[0]
            with self._lock:
                self._lost = f"The GPU has failed ({first}), and so would every later run. Restart the program."
            return UserError(self._lost)
        return None

    def _why_not(self, pair: Pair) -> str:
        loaded = self._loaded
        if loaded is not None and loaded.pair.id == pair.id:
            return ""
        # The pair in memory would make room for the next one.
        itemsize, workspace = self.dtype.itemsize, workspace_bytes(self.device)
        free = free_memory(self.device) + (loaded.pair.memory(itemsize, workspace).kept if loaded else 0)
        return why_not(pair, free, itemsize, huggingface_hub.constants.HF_HUB_OFFLINE, workspace)

    def _load(self, pair: Pair) -> None:
        def progress(message: str, fraction: float | None) -> None:
            log.info("%s%s", message, "" if fraction is None else f" {fraction:.0%}")
            self._say(pair, Status(message=message, fraction=fraction, ready=False))

        try:
            fetch_pair(pair, progress)  # a long download, or a pair that is nowhere, takes nothing from anybody
            with self._device_lock:
                with self._lock:
                    if self._wanted != pair.id:
                        return  # the visitor has changed their mind meanwhile
                    self._loaded = None  # two pairs at once may not fit
                release(self.device)
                loaded = load_pair(pair, self.device, self.dtype, progress)
                with self._lock:
                    self._loaded = loaded
            log.info("%s is ready", pair.label)
            for warning in loaded.warnings:
                log.warning("%s", warning)
            self._say(pair, _ready(pair, loaded.warnings))
        except UserError as error:
            log.warning("%s", error)
            self._say(pair, Status(message=str(error), fraction=None, ready=False, error=str(error)))
        except Exception as error:
            log.exception("loading %s failed", pair.id)
            text = f"{pair.label} could not be loaded because of an unexpected error; the server's log has the details."
            text = str(self._explained(None, error) or text)
            self._say(pair, Status(message=text, fraction=None, ready=False, error=text))

    def _say(self, pair: Pair, status: Status) -> None:
        with self._lock:
            if self._wanted == pair.id:
                self._status = status


def _ready(pair: Pair, warnings: Sequence[str]) -> Status:
    return Status(message=" ".join([f"{pair.label} is ready", *warnings]), fraction=1.0, ready=True)
