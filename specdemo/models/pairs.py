"""The registry of target and draft pairs, and which of them fit this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import UserError
from specdemo.models.files import kind_of

BUILT_IN_TARGET = "built-in:target"
BUILT_IN_DRAFT = "built-in:draft"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ASSETS = Path(__file__).parents[2] / "assets"
BUILT_IN_HEADS = ("built-in:eagle", "built-in:medusa")
DEFAULT_PAIR = "smollm2-135m"
OWN_PAIR = "own"

FIT = 0.9  # share of the free memory that a pair may take
_CACHE_SHARE = 0.1  # key/value caches of three runners, as a share of the weights: generous for 8k tokens


@dataclass(frozen=True)
class Pair:
    """A target and a draft that share a tokenizer. Sources are folders, hub ids or the built-in models.

    target_billions, draft_billions: parameters in units of 1e9, for the memory estimate; 0 where unknown. heads:
    built-in ones and folders; of two of a kind, the later one counts.
    """

    id: str
    label: str
    target: str
    draft: str | None
    target_billions: float = 0.0
    draft_billions: float = 0.0
    heads: tuple[str, ...] = ()

    def needed_bytes(self, bytes_per_parameter: int) -> int:
        """Memory for both models and their caches."""
        billions = self.target_billions + self.draft_billions
        return int(billions * 1e9 * bytes_per_parameter * (1 + _CACHE_SHARE))

    @property
    def has_store(self) -> bool:
        """Whether text of this target ships with the project."""
        return self.target == BUILT_IN_TARGET

    @property
    def has(self) -> set[str]:
        """Which of drafters.NEEDS it will serve when it is loaded, as far as that can be known before."""
        parts = {"draft": self.draft, "store": self.has_store, "layers": True, "trees": True}
        return {name for name, part in parts.items() if part} | {kind_of(head_folder(head)) for head in self.heads}

    @property
    def on_hub(self) -> bool:
        return bool(self.hub_ids)

    @property
    def hub_ids(self) -> list[str]:
        """The sources that are to be fetched from the hub."""
        sources = [source for source in (self.target, self.draft) if source]
        return [source for source in sources if not source.startswith("built-in:") and not local_path(source)]


PAIRS: dict[str, Pair] = {
    pair.id: pair
    for pair in (
        Pair(
            DEFAULT_PAIR,
            "SmolLM2-135M ← draft trained here",
            BUILT_IN_TARGET,
            BUILT_IN_DRAFT,
            0.135,
            0.03,
            BUILT_IN_HEADS,
        ),
        Pair(
            "smollm2-1.7b",
            "SmolLM2-1.7B ← SmolLM2-135M",
            "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            1.71,
            0.135,
        ),
        *(
            Pair(
                f"qwen2.5-{size}b",
                f"Qwen2.5-{size}B ← 0.5B",
                f"Qwen/Qwen2.5-{size}B-Instruct",
                "Qwen/Qwen2.5-0.5B-Instruct",
                billions,
                0.49,
            )
            for size, billions in (("3", 3.09), ("7", 7.62), ("14", 14.8), ("32", 32.8))
        ),
        *(
            Pair(
                f"qwen3-{size}b",
                f"Qwen3-{size}B ← 0.6B",
                f"Qwen/Qwen3-{size}B",
                "Qwen/Qwen3-0.6B",
                billions,
                0.6,
            )
            for size, billions in (("4", 4.02), ("8", 8.19), ("14", 14.8), ("32", 32.8))
        ),
        *(
            Pair(
                f"llama-{name.lower()}",
                f"Llama-{name} ← 3.2-1B",
                f"meta-llama/Llama-{name}-Instruct",
                "meta-llama/Llama-3.2-1B-Instruct",
                billions,
                1.24,
            )
            for name, billions in (("3.1-8B", 8.03), ("3.3-70B", 70.6))
        ),
        *(
            Pair(
                f"gemma-3-{size}b",
                f"Gemma-3-{size}B ← 1B",
                f"google/gemma-3-{size}b-it",
                "google/gemma-3-1b-it",
                billions,
                1.0,
            )
            for size, billions in (("4", 4.3), ("12", 12.2), ("27", 27.4))
        ),
    )
}


def own_pair(target: str | None, draft: str | None, heads: Sequence[str] = ()) -> Pair | None:
    """The pair given on the command line; None where nothing was given. A missing half is the default pair's.

    Raises UserError for a head's folder that holds none.
    """
    if target is None and draft is None and not heads:
        return None
    for head in heads:
        kind_of(head_folder(head))
    target = target or BUILT_IN_TARGET
    built_in: tuple[str, ...] = ()
    if target == BUILT_IN_TARGET:
        draft, built_in = draft or BUILT_IN_DRAFT, BUILT_IN_HEADS
    names = [os.path.basename(os.path.abspath(source)) for source in (target, draft, *heads) if source]
    return Pair(OWN_PAIR, " ← ".join(names), target, draft, heads=(*built_in, *heads))


def local_path(source: str) -> Path | None:
    """The path that a source is; None where it may be a hub id, which nothing here goes by."""
    path = Path(os.path.expanduser(source))
    looks_like_one = source.startswith((".", "~")) or source.endswith(".gguf") or not _HUB_ID.fullmatch(source)
    return path if looks_like_one or path.exists() else None


def head_folder(source: str) -> Path:
    """Where a built-in head or one of somebody's own lies."""
    if source in BUILT_IN_HEADS:
        return _ASSETS / source.removeprefix("built-in:")
    return Path(source).expanduser()


def find_pair(pairs: dict[str, Pair], id: str) -> Pair:
    """Raises UserError for a pair that is not in the registry."""
    if id not in pairs:
        raise UserError(f"There is no pair {id!r}; choose one of: {', '.join(pairs)}.")
    return pairs[id]


def why_not(pair: Pair, free_bytes: int, bytes_per_parameter: int, hub_offline: bool) -> str:
    """Why this pair cannot run here, in a few words; empty where it can."""
    needed = pair.needed_bytes(bytes_per_parameter)
    if needed > FIT * free_bytes:
        return f"needs {needed / 1e9:.0f} GB, {free_bytes / 1e9:.0f} GB are free"
    if pair.on_hub and hub_offline:
        if pair.id == OWN_PAIR:
            names = " and ".join(pair.hub_ids)
            return f"needs {names}: not a path here, and the model hub is switched off (HF_HUB_OFFLINE)"
        return "needs the model hub, which is switched off (HF_HUB_OFFLINE)"
    return ""
