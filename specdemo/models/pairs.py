"""The registry of target and draft pairs, and which of them fit this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import UserError
from specdemo.models.files import kind_of
from specdemo.models.memory import Memory, Size, needed, read_head, read_size

BUILT_IN_TARGET = "built-in:target"
BUILT_IN_DRAFT = "built-in:draft"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ASSETS = Path(__file__).parents[2] / "assets"
BUILT_IN_HEADS = ("built-in:eagle", "built-in:medusa")
DEFAULT_PAIR = "smollm2-135m"
OWN_PAIR = "own"

FIT = 0.9  # share of the free memory that a pair may take: the rest is for what an estimate does not see

_SMOLLM2_135M = "HuggingFaceTB/SmolLM2-135M-Instruct"
SIZES: dict[str, Size] = {  # parameters, layers, key/value heads, their width, vocabulary, width of the residual stream
    _SMOLLM2_135M: Size(134_515_008, 30, 3, 64, 49_152, 576, 8192),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Size(1_711_376_384, 24, 32, 64, 49_152, 2048, 8192),
    "Qwen/Qwen2.5-0.5B-Instruct": Size(494_000_000, 24, 2, 64, 151_936, 896),
    "Qwen/Qwen2.5-3B-Instruct": Size(3_090_000_000, 36, 2, 128, 151_936, 2048),
    "Qwen/Qwen2.5-7B-Instruct": Size(7_620_000_000, 28, 4, 128, 152_064, 3584),
    "Qwen/Qwen2.5-14B-Instruct": Size(14_800_000_000, 48, 8, 128, 152_064, 5120),
    "Qwen/Qwen2.5-32B-Instruct": Size(32_800_000_000, 64, 8, 128, 152_064, 5120),
    "Qwen/Qwen3-0.6B": Size(600_000_000, 28, 8, 128, 151_936, 1024),
    "Qwen/Qwen3-4B": Size(4_020_000_000, 36, 8, 128, 151_936, 2560),
    "Qwen/Qwen3-8B": Size(8_190_000_000, 36, 8, 128, 151_936, 4096),
    "Qwen/Qwen3-14B": Size(14_800_000_000, 40, 8, 128, 151_936, 5120),
    "Qwen/Qwen3-32B": Size(32_800_000_000, 64, 8, 128, 151_936, 5120),
    "meta-llama/Llama-3.2-1B-Instruct": Size(1_240_000_000, 16, 8, 64, 128_256, 2048),
    "meta-llama/Llama-3.1-8B-Instruct": Size(8_030_000_000, 32, 8, 128, 128_256, 4096),
    "meta-llama/Llama-3.3-70B-Instruct": Size(70_600_000_000, 80, 8, 128, 128_256, 8192),
    "google/gemma-3-1b-it": Size(1_000_000_000, 26, 1, 256, 262_144, 1152, lean=False),
    "google/gemma-3-4b-it": Size(4_300_000_000, 34, 4, 256, 262_144, 2560, lean=False),
    "google/gemma-3-12b-it": Size(12_200_000_000, 48, 8, 256, 262_144, 3840, lean=False),
    "google/gemma-3-27b-it": Size(27_400_000_000, 62, 16, 128, 262_144, 5376, lean=False),
}
"""Of the models that the registry's pairs are made of, by their hub ids. Contexts are left out where they are longer
than anything that counts here."""


@dataclass(frozen=True)
class Pair:
    """A target and a draft that share a tokenizer. Sources are folders, hub ids or the built-in models.

    heads: built-in ones and folders; of two of a kind, the later one counts.
    """

    id: str
    label: str
    target: str
    draft: str | None
    heads: tuple[str, ...] = ()

    def memory(self, itemsize: int, workspace: int = 0) -> Memory:
        """What it takes on a device, see `memory.needed`: nothing where nobody knows its target, and without those
        parts that nobody knows."""
        target, draft = _size(self.target), _size(self.draft) if self.draft else None
        found = [read_head(head_folder(head), target) for head in self.heads] if target else []
        heads = {head.kind: head for head in found if head}
        return needed(target, draft, list(heads.values()), itemsize, workspace)

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
        Pair(DEFAULT_PAIR, "SmolLM2-135M ← draft trained here", BUILT_IN_TARGET, BUILT_IN_DRAFT, BUILT_IN_HEADS),
        Pair("smollm2-1.7b", "SmolLM2-1.7B ← SmolLM2-135M", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _SMOLLM2_135M),
        *(
            Pair(
                f"qwen2.5-{size}b",
                f"Qwen2.5-{size}B ← 0.5B",
                f"Qwen/Qwen2.5-{size}B-Instruct",
                "Qwen/Qwen2.5-0.5B-Instruct",
            )
            for size in (3, 7, 14, 32)
        ),
        *(
            Pair(f"qwen3-{size}b", f"Qwen3-{size}B ← 0.6B", f"Qwen/Qwen3-{size}B", "Qwen/Qwen3-0.6B")
            for size in (4, 8, 14, 32)
        ),
        *(
            Pair(
                f"llama-{name.lower()}",
                f"Llama-{name} ← 3.2-1B",
                f"meta-llama/Llama-{name}-Instruct",
                "meta-llama/Llama-3.2-1B-Instruct",
            )
            for name in ("3.1-8B", "3.3-70B")
        ),
        *(
            Pair(f"gemma-3-{size}b", f"Gemma-3-{size}B ← 1B", f"google/gemma-3-{size}b-it", "google/gemma-3-1b-it")
            for size in (4, 12, 27)
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


def why_not(pair: Pair, free_bytes: int, itemsize: int, hub_offline: bool, workspace: int = 0) -> str:
    """Why this pair cannot run here, in a few words; empty where it can. itemsize, workspace: see `memory.needed`."""
    wanted = pair.memory(itemsize, workspace).total / FIT
    if wanted > free_bytes:
        return f"needs {_gigabytes(wanted)} GB, {_gigabytes(wanted - free_bytes)} GB more than are free"
    if pair.on_hub and hub_offline:
        if pair.id == OWN_PAIR:
            names = " and ".join(pair.hub_ids)
            return f"needs {names}: not a path here, and the model hub is switched off (HF_HUB_OFFLINE)"
        return "needs the model hub, which is switched off (HF_HUB_OFFLINE)"
    return ""


def _size(source: str) -> Size | None:
    """The size of a model; None where nobody knows it before it is fetched."""
    if source == BUILT_IN_TARGET:
        return SIZES[_SMOLLM2_135M]
    path = _ASSETS / "draft" if source == BUILT_IN_DRAFT else local_path(source)
    return read_size(path) if path else SIZES.get(source)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.0f}" if size >= 1e10 else f"{max(0.1, size / 1e9):.1f}"
