"""How much memory a pair takes, from the sizes of its models: told before anything is fetched or loaded.

Weights are the larger part of a large model only. A race has a key/value cache for each of its lanes; on a GPU these
are made when a pair is loaded, and passes over each are recorded, which have their logits, their own room for what
happens inside them, and a workspace for their matrix products.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

from specdemo.errors import UserError
from specdemo.models.eagle import published_taps
from specdemo.models.files import element_counts, kind_of, read_config
from specdemo.models.graphs import _SPANS, TREES
from specdemo.models.lean import is_lean
from specdemo.models.transformers_runner import context_length
from specdemo.settings import MAX_GAMMA, MAX_NODES

LANES, DRAFTING = 3, 2
"""Lanes that a race can have, and those of them that draft."""

WARM_ROOM = 2048
"""Tokens of prompt and answer that a GPU's caches are made for when a pair is loaded (one of the sizes that they come
in), and that a run is expected to have."""

CHAINS, DRAFT_STEPS = range(1, MAX_GAMMA + 2), range(1, 3)
"""Tokens of the target's passes, and of the draft's: what it draws, and sometimes one more that it has not read."""

_MEASURED = MAX_NODES + 1  # tokens of the longest pass that costs are measured with, without a head too
_ROUND = 8  # fp32 tensors [rows, vocab] that deciding over a draft holds at once: top-p's sort has the most
_FP32 = 4  # bytes; logits are always fp32
_POOLS = 2  # a recording's room inside its graph, and as much on its stream, from running before it is recorded
_KERNELS, _KERNEL_BYTES = 19, 10_000  # of a recorded layer; what the driver keeps of each (NVIDIA/cccl #3768)
_MARGIN = 512 << 20  # bytes that CUDA takes for kernels as they are first used, and torch for pieces that fit nothing

_FAULTS = (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError, ArithmeticError)
_FAULTS += (SafetensorError, StrictDataclassError, UserError)


@dataclass(frozen=True)
class Size:
    """What of a model decides how much memory it takes. head_dim: width of a key or a value of one head; width: of the
    residual stream; context: tokens that it reads at most; lean: computed by the lean forward, else by transformers."""

    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int
    context: int = 1 << 20
    lean: bool = True

    @classmethod
    def of(cls, config: PreTrainedConfig | Mapping[str, Any], parameters: int) -> Size:
        """From a transformers config, or the content of a config.json. Raises an error of transformers' for one that
        describes no model."""
        if isinstance(config, Mapping):
            config = AutoConfig.for_model(**config)
        text = config.get_text_config()
        heads, width = text.num_attention_heads, text.hidden_size
        context, window = context_length(text), getattr(text, "sliding_window", None)
        return cls(
            parameters=parameters,
            layers=text.num_hidden_layers,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or width // heads,
            vocab=text.vocab_size,
            width=width,
            context=min(context, window or context),
            lean=is_lean(config),
        )

    def cache_bytes(self, tokens: int, itemsize: int, taps: int = 0) -> int:
        """Bytes of one cache: keys and values, the rotations of its positions, and states of so many depths."""
        per_token = 2 * self.layers * self.kv_heads * self.head_dim + 2 * self.head_dim + taps * self.width
        return per_token * min(tokens, self.context) * itemsize


@dataclass(frozen=True)
class HeadSize:
    """A head over a target. kind: of files.HEAD_KINDS; taps: depths of the target whose states are kept for it; own:
    what its own cache is made for, None where it has none."""

    kind: str
    parameters: int
    taps: tuple[int, ...]
    own: Size | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes that a pair takes, by what takes them.

    caches, logits: tensors that stay between runs; pools: what torch sets aside for the inside of recorded passes;
    graphs: what the driver keeps of these; runs: what is made for a run and goes with it; margin: what nobody hands
    out.
    """

    weights: int = 0
    caches: int = 0
    logits: int = 0
    pools: int = 0
    graphs: int = 0
    workspaces: int = 0
    runs: int = 0
    margin: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))

    @property
    def tensors(self) -> int:
        """Held as tensors when the pair is loaded."""
        return self.weights + self.caches + self.logits

    @property
    def kept(self) -> int:
        """Free again when another pair is loaded."""
        return self.tensors + self.pools + self.graphs + self.workspaces


def needed(
    target: Size | None, draft: Size | None, heads: Sequence[HeadSize], itemsize: int, workspace: int = 0
) -> Memory:
    """Memory of a pair in a precision of `itemsize` bytes a number. Nothing for a target that nobody knows.

    workspace: bytes that each stream's matrix products take on a CUDA device, where passes are recorded; 0 elsewhere.
    """
    if target is None:
        return Memory()
    caches = _caches(target, draft, {head.taps for head in heads}, recorded=workspace > 0)
    kept = [cache for cache in caches if cache.passes]
    made = sum(cache.bytes(itemsize) for cache in caches if not cache.passes)
    made += sum(DRAFTING * head.own.cache_bytes(WARM_ROOM, itemsize) for head in heads if head.own)
    rows = max(TREES) if heads else max(CHAINS)
    return Memory(
        weights=sum(_weights(model, itemsize, workspace > 0) for model in (target, draft) if model)
        + itemsize * sum(head.parameters for head in heads),
        caches=sum(cache.bytes(itemsize) for cache in kept),
        logits=sum(cache.logits for cache in kept),
        pools=sum(cache.pools(itemsize) for cache in kept),
        graphs=sum(cache.graphs for cache in kept),
        workspaces=workspace * (1 + len(kept)),
        runs=made + _ROUND * rows * target.vocab * _FP32,
        margin=_MARGIN if workspace else 0,
    )


@dataclass(frozen=True)
class _Cache:
    """One of a model, with states of so many depths. passes: tokens of those recorded over it; none where it is made
    for a run."""

    size: Size
    taps: int = 0
    passes: tuple[int, ...] = ()

    def bytes(self, itemsize: int) -> int:
        return self.size.cache_bytes(WARM_ROOM, itemsize, self.taps)

    @property
    def logits(self) -> int:
        """Bytes of the logits that its passes leave; they lie in one place."""
        return max(self.passes) * self.size.vocab * _FP32

    def pools(self, itemsize: int) -> int:
        """Bytes set aside for its passes: of what they compute, logits on their way are by far the largest."""
        rounded = itemsize if itemsize < _FP32 else 0  # they are computed in the model's precision first
        return _POOLS * max(self.passes) * self.size.vocab * (rounded + _FP32)

    @property
    def graphs(self) -> int:
        """Bytes that the driver keeps of its passes, each recorded for every span that a text may need."""
        spans = len({min(span, WARM_ROOM, self.size.context) for span in _SPANS})
        return spans * len(self.passes) * self.size.layers * _KERNELS * _KERNEL_BYTES


def _caches(target: Size, draft: Size | None, taps: Collection[tuple[int, ...]], recorded: bool) -> list[_Cache]:
    """Every cache that a race can want at once. Recorded ones wait for whichever lanes need them, see
    `loading.warm_up`; others are made for the lanes that there are."""
    drafts = [_Cache(draft, passes=tuple(DRAFT_STEPS) if recorded and draft.lean else ())] * DRAFTING if draft else []
    if not (recorded and target.lean):
        most = max(map(len, taps), default=0)
        return [_Cache(target)] * (LANES - DRAFTING) + [_Cache(target, most)] * DRAFTING + drafts
    chains = tuple(CHAINS)
    return [
        _Cache(target, passes=(*chains, _MEASURED)),
        *[_Cache(target, passes=chains)] * (LANES - 1),
        *(_Cache(target, len(depths), (*chains, *TREES)) for depths in taps for _ in range(DRAFTING)),
        *drafts,
    ]


def _weights(size: Size, itemsize: int, on_gpu: bool) -> int:
    """Bytes; in fp32 on a CPU a reordered copy of the output layer stands beside the one that embeds."""
    copied = size.lean and itemsize == _FP32 and not on_gpu
    return itemsize * (size.parameters + (size.vocab * size.width if copied else 0))


def read_size(folder: Path) -> Size | None:
    """The size of the model in a folder, from its config and the headers of its files; None where they cannot be
    read."""
    try:
        config, counts = read_config(folder), element_counts(folder)
        if config.get("tie_word_embeddings"):
            counts.pop("lm_head.weight", None)  # some files hold it twice
        return Size.of(config, sum(counts.values()))
    except _FAULTS:
        return None


def read_head(folder: Path, target: Size) -> HeadSize | None:
    """The size of the head in a folder; None where it cannot be read."""
    try:
        config, counts, kind = read_config(folder), element_counts(folder), kind_of(folder)
        parameters = sum(counts.values())
        if kind == "medusa":
            return HeadSize(kind, parameters, (target.layers + 1,))
        taps = config.get("taps") or published_taps("midlayer.hidden_norm.weight" in counts, target.layers)
        own = replace(Size.of(LlamaConfig(**config), parameters), layers=1)
        return HeadSize(kind, parameters, tuple(taps), own)
    except _FAULTS:
        return None
