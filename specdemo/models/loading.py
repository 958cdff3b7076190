"""From a source (the built-in models, a folder, a hub id) to weights that are ready to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.costs import TEXTBOOK, Costs
from specdemo.models.datastore import Datastore, load_datastore
from specdemo.models.device import dtype_name, enter, is_lost, is_out_of_memory
from specdemo.models.files import kind_of, read_config, read_weights, require_plain, weight_files, weights_sha256
from specdemo.models.gguf import converted, gguf_of
from specdemo.models.heads import Head, load_head, mismatch
from specdemo.models.lean import LeanModel, is_lean
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.measure import BUSY, Parts, measure, usual
from specdemo.models.memory import CHAINS, DRAFT_STEPS, DRAFTING, LANES, WARM_ROOM
from specdemo.models.pairs import BUILT_IN_DRAFT, BUILT_IN_TARGET, FIT, Pair, head_folder, local_path
from specdemo.models.probe import probe
from specdemo.models.progress import Progress, silent
from specdemo.models.runner import LanguageModel
from specdemo.models.tokens import Tokens, fingerprint, load_tokenizer, require_same, vocabulary_size
from specdemo.models.transformers_runner import TransformersLanguageModel, context_length
from specdemo.models.wheel import NAME, default_target
from specdemo.settings import MAX_GAMMA

BUILT_IN_DRAFT_FOLDER = Path(__file__).parents[2] / "assets" / "draft"

_WANTED = ["*.json", "*.safetensors", "*.model", "*.jinja"]  # other formats can run code when they are opened
_STATES = {"conv", "linear_attention", "mamba", "hybrid", "hybrid_sliding"}  # kinds of layers that keep one
_FAULTS = (OSError, ValueError, TypeError, AttributeError, IndexError, AssertionError)
_FAULTS += (RuntimeError, ImportError, StrictDataclassError)  # clashing shapes, a package to install, a config's values
_WARM_CONTEXT = 64  # tokens in the cache while kernels are warmed up


@dataclass(frozen=True)
class LoadedPair:
    """A pair ready to decode. `draft` is None for a target without one (prompt lookup still works), `store` for one
    whose text nobody has kept; `heads` by kind. `costs`: what rounds cost on this machine; `steps` and `reads`: what a
    draft step does, and each token read before one, by what computes it, in target steps. `warnings`: sentences about
    parts that do not quite belong."""

    pair: Pair
    tokens: Tokens
    target: LanguageModel
    draft: LanguageModel | None
    costs: Costs = TEXTBOOK
    store: Datastore | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    reads: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def has(self) -> set[str]:
        """Which of drafters.NEEDS this pair can serve."""
        lean, trees = isinstance(self.target, LeanLanguageModel), self.target.takes_trees
        parts = {"draft": self.draft, "store": self.store, "layers": lean, "trees": trees}
        return {name for name, part in parts.items() if part} | set(self.heads)

    def forget(self) -> None:
        """Give back the caches that wait for the next run."""
        for model in (self.target, self.draft):
            if isinstance(model, LeanLanguageModel):
                model.forget()

    def costs_of(self, part: str) -> Costs:
        """Costs of rounds whose draft steps that part computes; steps of anything else (a lookup) are none."""
        return replace(self.costs, c=self.steps.get(part, 0.0), read=self.reads.get(part, 0.0))


def fetch_pair(pair: Pair, progress: Progress = silent) -> None:
    """Bring a pair's files onto this machine. Raises UserError for a source that is nowhere."""
    for source in (pair.target, pair.draft):
        if source:
            resolve(source, progress)


def load_pair(pair: Pair, device: torch.device, dtype: torch.dtype, progress: Progress = silent) -> LoadedPair:
    """Load and warm up a pair. Raises UserError for whatever is wrong with the sources."""
    _require_sources(pair)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it warns about is said, or refused, in sentences of our own
    enter(device)
    if device.type == "cuda":
        # It makes a plan for every new shape, which takes longer than the rounds of a text.
        torch.backends.cuda.enable_cudnn_sdp(False)
    target_name, target_folder = resolve(pair.target, progress)
    draft_name, draft_folder = resolve(pair.draft, progress) if pair.draft else ("", "")
    progress(f"Loading {target_name}", None)
    tokenizer = _load_tokenizer(target_name, target_folder)
    target, config, generation = _load(target_name, target_folder, tokenizer, device, dtype)
    draft = None
    if pair.draft:
        progress(f"Loading {draft_name}", None)
        draft = _load_draft(draft_name, draft_folder, tokenizer, device, dtype)
    for model, source in ((target, pair.target), (draft, pair.draft)):
        if model and source not in (BUILT_IN_TARGET, BUILT_IN_DRAFT):
            progress(f"Trying {model.info.name}", None)
            with _explained(model.info.name):
                probe(model)
    store = load_datastore(BUILT_IN_DRAFT_FOLDER / "text") if pair.has_store else None
    folders = [head_folder(source) for source in pair.heads]
    heads = {kind_of(folder): load_head(folder, target, dtype) for folder in folders}
    found = (_shortened(target, config), *(mismatch(folder, target) for folder in folders))
    warnings = tuple(text for text in found if text)
    tokens = Tokens.of(tokenizer, config, generation)
    loaded = LoadedPair(pair, tokens, target, draft, store=store, heads=heads, warnings=warnings)
    with _explained(pair.label):
        warm_up(loaded, progress)
        progress("Measuring costs", None)
        return measured(loaded)


def _require_sources(pair: Pair) -> None:
    """Raises UserError for a mistyped path of any part, before another is downloaded, converted or read."""
    for source in (pair.target, pair.draft):
        if source and not source.startswith("built-in:"):
            _path_of(source)


def measured(loaded: LoadedPair) -> LoadedPair:
    """The pair with what its rounds cost on this machine."""
    parts = Parts(loaded.target, loaded.draft, loaded.heads)
    found = measure(parts)
    figures = found or usual(parts)
    return replace(
        loaded,
        costs=figures.costs,
        steps=figures.steps,
        reads=figures.reads,
        warnings=loaded.warnings if found else (*loaded.warnings, BUSY),
    )


def warm_up(loaded: LoadedPair, progress: Progress = silent) -> None:
    """Run every shape that decoding uses once, untimed, so that no lane pays for kernels being prepared. On a GPU
    passes are recorded for as many caches of each kind as a race's lanes can want at once."""
    on_gpu = loaded.target.device.type == "cuda"
    kinds = {head.taps for head in loaded.heads.values()} if on_gpu else ()
    lanes = [(loaded.target, CHAINS, ())] * (LANES if on_gpu else 1)
    lanes += [(loaded.target, CHAINS, taps) for taps in kinds] * DRAFTING
    lanes += [(loaded.draft, DRAFT_STEPS, ())] * (DRAFTING if on_gpu else 1) if loaded.draft else []
    runners = []  # they are all held, so that each has a cache of its own
    for lane, (model, lengths, taps) in enumerate(lanes):
        context = max(1, min(_WARM_CONTEXT, model.max_length - MAX_GAMMA - 1))
        lengths = [k for k in lengths if context + k <= model.max_length]
        room = WARM_ROOM if on_gpu else context + MAX_GAMMA + 1
        progress("Warming up", lane / len(lanes))
        runners.append(runner := model.runner(room, passes=lengths, taps=taps))
        runner.prefill([0] * context)
        for i, k in enumerate(lengths):
            progress("Warming up", (lane + i / len(lengths)) / len(lanes))
            runner.forward([0] * k)
            runner.rollback(context)


def resolve(source: str, progress: Progress = silent) -> tuple[str, str]:
    """A name for people and the folder to read: downloaded first where it is on the hub, converted where it is GGUF.

    Raises UserError for a source that is nowhere or holds no model.
    """
    if source == BUILT_IN_TARGET:
        return NAME, str(default_target(progress))
    if source == BUILT_IN_DRAFT:
        return "the built-in draft", str(BUILT_IN_DRAFT_FOLDER)
    path = _path_of(source)
    if path is None:
        return source, str(_fetched(source, progress))
    if gguf := gguf_of(path):
        return gguf.stem, str(converted(gguf, progress))
    if not (path / "config.json").is_file():
        raise UserError(
            f"{source} is no model folder: it has no config.json and no GGUF file. Give a folder, a .gguf file or a "
            "hub id."
        )
    read_config(path)
    return path.resolve().name, str(path)


def _path_of(source: str) -> Path | None:
    """The path that a source is, None for a hub id. Raises UserError where nothing is there, or nobody can name it."""
    path = local_path(source)
    if path is None:
        return None
    if not path.exists():
        raise UserError(
            f"There is no file or folder {source}. Check its spelling, or give a hub id such as OWNER/NAME."
        )
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"The name {source!a} has bytes that are no UTF-8 text. Rename it.") from error
    return path


def _fetched(source: str, progress: Progress) -> Path:
    progress(f"Fetching {source} from the hub", None)
    try:
        folder = Path(snapshot_download(source, allow_patterns=_WANTED, ignore_patterns=["consolidated*"]))
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"There is no file or folder {source} here, and the hub gave no model of that name: {first} If it is a hub "
            "id, check its spelling and the network; if it is a path, check that it is there."
        ) from error
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{source} on the hub has no config.json, so it is no model in safetensors. If it holds GGUF files, "
            "download the one you want and give its path."
        )
    return folder


def _load_tokenizer(name: str, source: str):
    with _explained(name):
        return load_tokenizer(pretrained_model_name_or_path=source)


def _load(
    name: str, source: str, tokenizer, device: torch.device, dtype: torch.dtype
) -> tuple[LanguageModel, PreTrainedConfig, GenerationConfig | None]:
    with _explained(name):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        _require_decoder(name, config)
        try:
            generation = GenerationConfig.from_pretrained(source)
        except OSError:  # optional
            generation = None
        vocab_size, rows = vocabulary_size(tokenizer), config.get_text_config().vocab_size
        if vocab_size > rows:
            raise UserError(
                f"{name} has {rows:,} rows in its embedding, too few for its tokenizer's ids, which go up to "
                f"{vocab_size - 1:,}: they do not belong together. Fetch both from one place."
            )
        if is_lean(config) and _fits(Path(source), device):
            weights = read_weights(Path(source))
            info = _info(name, source, _parameters(weights), dtype)
            return LeanLanguageModel(LeanModel(config, weights, device, dtype), info, vocab_size), config, generation
        model = _load_by_transformers(name, source, config, device, dtype)
        info = _info(name, source, model.num_parameters(), dtype)
        return TransformersLanguageModel(model, info, vocab_size), config, generation


def _require_decoder(name: str, config: PreTrainedConfig) -> None:
    """Raises UserError for what does not write texts token by token, or could not take tokens back."""
    reads_both_ways = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if config.is_encoder_decoder or reads_both_ways:
        raise UserError(
            f"{name} ({config.model_type}) is an encoder, no causal language model: it does not write texts token by "
            "token. Choose one that does."
        )
    if _STATES & set(getattr(config.get_text_config(), "layer_types", None) or ()):
        raise UserError(_stateful(name))


def _stateful(name: str) -> str:
    return (
        f"{name} keeps a state that cannot be rolled back, so drafts cannot be verified with it. Choose another model."
    )


def _load_by_transformers(
    name: str, source: str, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Raises UserError where weights and config do not belong together: transformers would go on with random ones."""
    weight_files(Path(source))
    if not getattr(config, "quantization_config", None):  # which transformers knows how to compute with
        require_plain(Path(source))
    # What fits on the device that was chosen belongs there whole: passes from one GPU to the next cost time. Ids go in
    # and logits come out on the first one, which accelerate sees to, so that is where a draft belongs.
    several = device.type == "cuda" and torch.cuda.device_count() > 1
    placed = {"device_map": "auto"} if several and not _fits(Path(source), device) else {}
    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by their names
        **placed,
    )
    if getattr(model, "_is_stateful", False):
        raise UserError(_stateful(name))
    _require_whole(name, loading, {_as_any_layers(key) for key in model.state_dict()})
    return model.eval() if placed else model.eval().to(device)


def _require_whole(name: str, loading: dict, known: set[str]) -> None:
    """Raises UserError, naming a weight, unless the checkpoint holds exactly the layers that its config describes. What
    else it holds (eyes, a training's leftovers) is nobody's business. known: the model's weights, of any layer."""
    missing, others = sorted(loading["missing_keys"]), sorted(loading["mismatched_keys"])
    surplus = sorted(key for key in loading["unexpected_keys"] if _as_any_layers(key) in known)
    if missing:
        fault = f"{name} lacks {len(missing)} of its weights, among them {missing[0]}"
    elif others:
        weight, held, described = others[0]
        fault = f"{name} holds {weight} as {tuple(held)}, where its config.json describes {tuple(described)}"
    elif surplus:
        fault = f"{name} holds more layers than its config.json describes, among their weights {surplus[0]}"
    else:
        return
    raise UserError(f"{fault}: its files do not belong together. Fetch them again.")


def _as_any_layers(weight: str) -> str:
    """The weight's name without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", weight)


def _shortened(target: LanguageModel, config: PreTrainedConfig) -> str:
    """A sentence where less of a target's context is used than its config promises, else empty."""
    promised = context_length(config.get_text_config())
    if isinstance(target, LeanLanguageModel) or target.max_length >= promised:
        return ""
    return (
        f"{target.info.name} reads {target.max_length:,} tokens here, prompt and answer together, instead of "
        f"{promised:,}: beyond them it rotates all positions anew, and nothing that is cached would be right."
    )


def _load_draft(name: str, source: str, target_tokenizer, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A draft model: one with a reduced vocabulary made by this project, or any model of the same tokenizer."""
    card = read_config(Path(source)).get("specdemo")
    if isinstance(card, dict):
        return _load_reduced(name, Path(source), card, target_tokenizer, device, dtype)
    tokenizer = _load_tokenizer(name, source)
    require_same(target_tokenizer, tokenizer)
    return _load(name, source, tokenizer, device, dtype)[0]


def _load_reduced(
    name: str, folder: Path, card: dict, target_tokenizer, device: torch.device, dtype: torch.dtype
) -> LanguageModel:
    with _explained(name):
        vocabulary = card.get("vocabulary_sha256")
    if vocabulary != fingerprint(target_tokenizer):
        raise UserError(
            f"{name} was trained for another vocabulary than this target's. Choose a draft of the target's family, "
            "or train one: python -m specdemo train draft --help"
        )
    with _explained(name):
        config = AutoConfig.from_pretrained(folder)
        weights = read_weights(folder)
        vocab_ids = weights.pop("vocab_ids").long().to(device)
        info = _info(f"draft {_parameters(weights) / 1e6:.1f}M", str(folder), _parameters(weights), dtype)
        return LeanLanguageModel(LeanModel(config, weights, device, dtype), info, len(vocab_ids), vocab_ids)


def _fits(folder: Path, device: torch.device) -> bool:
    """Whether one device can hold the weights; more than that is spread over several by accelerate."""
    size = sum(file.stat().st_size for file in weight_files(folder))
    return device.type != "cuda" or size < FIT * torch.cuda.mem_get_info(device)[0]


def _parameters(weights: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in weights.values())


def _info(name: str, source: str, parameters: int, dtype: torch.dtype) -> ModelInfo:
    if Path(source).parent.name == "snapshots":  # the hub's cache: the folder is named by the commit
        return ModelInfo(name=name, parameters=parameters, dtype=dtype_name(dtype), revision=Path(source).name)
    return ModelInfo(name=name, parameters=parameters, dtype=dtype_name(dtype), sha256=weights_sha256(Path(source)))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what loaders raise over bad files into a sentence that says which model and what to do."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(f"The weights of {name} are damaged or cut short ({error}). Fetch them again.") from error
    except KeyError as error:
        raise UserError(f"{name} lacks {error}: its files do not belong together. Fetch them again.") from error
    except _FAULTS as error:
        if is_out_of_memory(error):
            raise UserError(f"{name} does not fit into the memory that is free. Choose a smaller pair.") from error
        if is_lost(error):
            raise
        lines = str(error).strip().split("\n")
        first = " ".join(map(str.strip, lines)) if isinstance(error, StrictDataclassError) else lines[0]
        raise UserError(
            f"{name} could not be loaded: {first} If it is a hub id, check its spelling and the network; if it is a "
            "folder, check that config, tokenizer and safetensors are in it."
        ) from error
