"""Published Medusa and EAGLE checkpoints as folders that `--head` takes.

What is in a checkpoint says what it is: Medusa (Cai et al. 2024, 2401.10774), EAGLE or EAGLE-2 (Li et al. 2024,
2401.15077 and 2406.16858), EAGLE-3 (Li et al. 2025, 2503.01840), by the names that their authors or the serving engines
gave to the weights. Names become the authors', shapes are read off the weights, and nothing is computed: the weights
keep their values and their dtype.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, arange
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specdemo.errors import UserError
from specdemo.models.checkpoints import read_checkpoint
from specdemo.models.files import read_config, require_numbers

_WANTED = ["*.json", "*.safetensors", "*.bin", "*.pt"]
_WRAPPERS = ("model.", "module.", "ea_layer.", "draft_model.")
"""Prefixes of weights that were saved as a part of something else."""

_LAYER = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    "post_attention_layernorm.weight",
)
_NEEDED = {
    "layers.0.": ("fc.weight", *(f"layers.0.{name}" for name in _LAYER)),
    "midlayer.": (
        "fc.weight",
        "norm.weight",
        *(f"midlayer.{name}" for name in (*_LAYER, "input_layernorm.weight", "hidden_norm.weight")),
    ),
}
_OPTIONAL = re.compile(
    r"fc\.bias|embed_tokens\.weight|lm_head\.weight|d2t|(layers\.0|midlayer)\."
    r"(self_attn\.([qkvo]_proj\.bias|[qk]_norm\.weight)|mlp\.\w+_proj\.bias|input_layernorm\.weight)"
)
_CHANGED_ARITHMETIC = ("norm_before_fc", "fc_norm", "norm_output", "parallel_drafting")
"""Settings of variants that the loading side does not compute. They would draft, and badly."""


@dataclass(frozen=True)
class Converted:
    """A checkpoint in this project's form. `label`: what it turned out to be."""

    label: str
    config: dict
    tensors: dict[str, Tensor]


def convert(source: str, out: Path) -> str:
    """Convert a folder or a hub id and write the result to `out`, whole or not at all; what the checkpoint was.

    Raises UserError for whatever is wrong with the source or with `out`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already and is not empty. Choose another folder, or remove that one first.")
    folder = _fetch(source)
    tensors, config = read_checkpoint(folder), _read_config(folder)
    if "head" in config:
        raise UserError(f"{source} is in this project's form already. Use it as it is: --head {source}")
    names = {_plain(name): name for name in tensors}
    tensors = {plain: tensors[name] for plain, name in names.items() if "rotary_emb." not in plain}
    _require_unrounded(tensors)
    require_numbers(tensors, folder)
    found = _medusa(tensors, config) or _eagle(tensors, config)
    if found is None:
        raise UserError(
            f"{source} is no head that is known here (its weights begin with {', '.join(sorted(tensors)[:3])}). Known "
            "are Medusa, EAGLE, EAGLE-2 and EAGLE-3; a whole language model is loaded with --target or --draft."
        )
    _write(out, found, Path(source).name)
    return found.label


def _fetch(source: str) -> Path:
    """The folder of a source, downloaded first where it is on the hub."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"{source} is a file. Give the folder that it lies in, with its config.json.")
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UserError(f"There is no folder {source}. Give a folder or a hub id (OWNER/NAME).")
    try:
        return Path(snapshot_download(source, allow_patterns=_WANTED))
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"There is no folder {source}, and it could not be fetched from the hub: {first} Check its spelling and "
            "the network."
        ) from error


def _read_config(folder: Path) -> dict:
    """config.json, with what serving engines nest laid flat; empty where there is none, as weights may say it all."""
    config = read_config(folder)
    for nested in ("model", "transformer_layer_config"):  # of vLLM and of its Speculators
        if isinstance(config.get(nested), dict):
            config = config[nested] | {name: value for name, value in config.items() if value is not None}
    return config


def _plain(name: str) -> str:
    """A weight's name as the authors of its method have it."""
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


# --- Medusa ---


def _medusa(tensors: dict[str, Tensor], config: dict) -> Converted | None:
    """How many heads of how many blocks is read off the names: published configs say less than is there."""
    prefix = "medusa_head."
    if any(name.startswith(prefix) for name in tensors):  # a whole fine-tuned model, or its heads alone
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    named = {_medusa_name(name, tensors, config): value for name, value in tensors.items()}
    blocks = [match for name in named if (match := re.fullmatch(r"(\d+)\.(\d+)\.linear\.weight", name))]
    if not blocks:
        return None
    heads, depth = (1 + max(int(match[i]) for match in blocks) for i in (1, 2))
    own = {f"{head}.{depth}.weight" for head in range(heads)}
    shared = "lm_head.weight" in named
    needed = {f"{head}.{block}.linear.weight" for head in range(heads) for block in range(depth)}
    optional = {"lm_head.weight", *(name.replace("weight", "bias") for name in needed)}
    if own & named.keys() and not shared:
        needed |= own
    _require("Medusa", named, needed, optional)
    description = {"head": "medusa", "medusa_num_heads": heads, "medusa_num_layers": depth}
    outputs = "one output layer" if shared else "output layers of their own" if own <= needed else "the target's output"
    return Converted(f"Medusa, {heads} heads with {outputs}", description, named)


def _medusa_name(name: str, tensors: dict[str, Tensor], config: dict) -> str:
    """vLLM's names ("blocks.0.layers.0.weight", "lm_heads.0.weight") as Medusa's own."""
    name = name.removeprefix("medusa_heads.")
    if match := re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)", name):
        return f"{match[1]}.{match[2]}.linear.{match[3]}"
    if match := re.fullmatch(r"lm_heads\.(\d+)\.weight", name):
        if config.get("original_lm_head"):
            return "lm_head.weight"
        depth = len({n for n in tensors if re.fullmatch(r"(medusa_heads\.)?blocks\.0\.layers\.\d+\.weight", n)})
        return f"{match[1]}.{depth}.weight"
    return name


# --- EAGLE ---


def _eagle(tensors: dict[str, Tensor], config: dict) -> Converted | None:
    if "fc.weight" not in tensors:
        return None
    if "layers.0.hidden_norm.weight" in tensors:  # EAGLE-3 as serving engines name it
        tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    joins_depths = "midlayer.hidden_norm.weight" in tensors
    label, at = ("EAGLE-3", "midlayer.") if joins_depths else ("EAGLE", "layers.0.")
    _read_vocabulary(tensors, config)
    _require(label, tensors, set(_NEEDED[at]), _OPTIONAL)
    for setting in _CHANGED_ARITHMETIC:
        if config.get(setting):
            raise UserError(f'This {label} head was trained with "{setting}", which is not computed here.')
    description = {"head": "eagle"} | _shape(tensors, config, at)
    if joins_depths:
        description |= {name: value for name, value in _taps(config).items() if value}
    return Converted(label, description, tensors)


def _read_vocabulary(tensors: dict[str, Tensor], config: dict) -> None:
    """Make sure that a reduced vocabulary says which tokens it holds: "d2t", or "t2d", a flag for each target token."""
    flags, offsets = tensors.pop("t2d", None), tensors.get("d2t")
    if "lm_head.weight" not in tensors:
        if offsets is not None and bool(offsets.any()):
            raise UserError(
                f'"d2t" names the {len(offsets)} tokens of an output layer, and there is none ("lm_head.weight"). '
                "Fetch the checkpoint again."
            )
        tensors.pop("d2t", None)
        return
    rows = len(tensors["lm_head.weight"])
    if offsets is not None and len(offsets) != rows:
        raise UserError(f'"d2t" names {len(offsets)} tokens, and the output layer has {rows}: fetch it again.')
    if offsets is not None:
        return
    whole = len(flags) if flags is not None else config.get("vocab_size")
    if flags is not None and rows == int(flags.sum()) < whole:
        tensors["d2t"] = flags.nonzero()[:, 0] - arange(rows)
    elif whole is None or rows < whole:
        raise UserError(
            f"Its output layer knows {rows} of {whole or 'an unknown number of'} tokens, and nothing says which ones: "
            '"d2t" is missing, and so may be the publisher\'s config.json. Fetch the checkpoint again.'
        )


def _shape(tensors: dict[str, Tensor], config: dict, at: str) -> dict:
    """What a config says of the layer: widths from the weights; heads, rotation and epsilon from the config."""
    width, inside, shared, mlp = (
        len(tensors[name])
        for name in ("fc.weight", *(f"{at}{part}_proj.weight" for part in ("self_attn.q", "self_attn.k", "mlp.gate")))
    )
    queries, dim = config.get("num_attention_heads"), config.get("head_dim")
    if not queries and not dim:
        raise UserError(
            'config.json of the head says neither "num_attention_heads" nor "head_dim", and the weights do not show '
            "it. Put the config.json of its publisher beside them."
        )
    dim = dim or inside // queries
    queries = queries or inside // dim
    if queries * dim != inside or shared % dim or config.get("hidden_size", width) != width:
        raise UserError(
            f"config.json does not belong to these weights: {queries} heads of {dim} and a width of "
            f"{config.get('hidden_size', width)}, where the weights have {inside} x {width}. Fetch both again."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f'The head uses "{config["hidden_act"]}" in its layer, and only "silu" is computed here.')
    fields = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}  # the publisher's defaults
    fields = {name: config.get(name) or default for name, default in fields.items()}
    # transformers knows how older configs spell rotations.
    more = {name: config[name] for name in ("rope_scaling", "rope_parameters") if config.get(name)}
    try:
        layer = LlamaConfig(
            hidden_size=width,
            intermediate_size=mlp,
            num_attention_heads=queries,
            num_key_value_heads=shared // dim,
            head_dim=dim,
            **fields,
            **more,
        )
        rotation = layer.rope_parameters["rope_type"]
    except (StrictDataclassError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"config.json of the head is not one of a Llama layer: {error}") from error
    if rotation != "default" and rotation not in ROPE_INIT_FUNCTIONS:
        raise UserError(f'The head rotates positions by "{rotation}", which is not known here.')
    written = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {
        name: getattr(layer, name) for name in (*written, "rms_norm_eps", "rope_parameters", "max_position_embeddings")
    }


def _taps(config: dict) -> dict:
    """What an EAGLE-3 config may say beyond the published layout.

    Depths are numbered in two ways, by the place where they stand: vLLM reads its field as the layers that the states
    enter, SGLang reads its own as those that they leave.
    """
    entered = config.get("eagle_aux_hidden_state_layer_ids")
    left = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    taps = list(entered) if entered else [layer + 1 for layer in left] if left else None
    return {"taps": taps, "norm_before_residual": config.get("norm_before_residual")}


# --- Checking and writing ---


def _require_unrounded(tensors: dict[str, Tensor]) -> None:
    """Raises UserError for whole numbers, of quantised weights."""
    for name, value in tensors.items():
        if name not in ("d2t", "t2d") and (not value.is_floating_point() or value.element_size() < 2):
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{name} holds {kind}: it is quantised, which is not computed here. Look for one in fp16.")


def _require(label: str, tensors: dict[str, Tensor], needed: set[str], optional: re.Pattern | set[str]) -> None:
    """Raises UserError unless every needed weight is there, and no other than the optional ones."""
    if missing := sorted(needed - tensors.keys()):
        raise UserError(f"This looks like {label}, but {missing[0]} is missing. Fetch the checkpoint again.")
    allowed = optional.fullmatch if isinstance(optional, re.Pattern) else optional.__contains__
    if unknown := sorted(name for name in tensors.keys() - needed if not allowed(name)):
        raise UserError(
            f"This looks like {label}, but {unknown[0]} is no weight of such a head: it is a variant (or quantised), "
            "which is not computed here."
        )


def _write(out: Path, found: Converted, source: str) -> None:
    """Both files or neither: they are written beside `out` and moved there together."""
    unfinished = out.resolve().parent / f".{out.name}.unfinished"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        # Copies, as weights that share memory (Medusa ties the blocks of a head) could not be written.
        tensors = {name: value.clone().contiguous() for name, value in found.tensors.items()}
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        config = found.config | {"source": source}
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if out.is_dir():
            out.rmdir()
        unfinished.rename(out)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{out} cannot be written ({why}). Choose another folder.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
