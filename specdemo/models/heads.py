"""Heads from their folders: config.json, which says what kind of head it is and for which target, and safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import LlamaConfig

from specdemo.errors import UserError
from specdemo.events import ModelInfo
from specdemo.models.cache import KVCache
from specdemo.models.device import dtype_name, is_lost, is_out_of_memory
from specdemo.models.eagle import EagleHead
from specdemo.models.files import kind_of, read_config, read_weights, require_numbers, sha256_of, weight_files
from specdemo.models.medusa import MedusaHeads
from specdemo.models.runner import LanguageModel

Head = EagleHead | MedusaHeads


def load_head(folder: Path, target: LanguageModel, dtype: torch.dtype) -> Head:
    """Load a head for a target. A head trained on other weights is loaded with a warning: it drafts correctly, but
    what it drafts is accepted less often. Raises UserError for a folder that holds no head of this target's size, or
    weights that are no numbers."""
    kind = kind_of(folder)
    config = read_config(folder)
    try:
        tensors = read_weights(folder)
    except SafetensorError as error:
        raise UserError(f"The weights in {folder} are damaged or cut short ({error}). Make them again.") from error
    require_numbers(tensors, folder, dtype)
    parameters = sum(value.numel() for value in tensors.values() if value.is_floating_point())
    try:
        head = (
            MedusaHeads(config, tensors, target, dtype)
            if kind == "medusa"
            else EagleHead(LlamaConfig(**config), tensors, target, dtype)
        )
        _try(head, target)
        head.info = ModelInfo(
            name=f"{kind} {parameters / 1e6:.1f}M",
            parameters=parameters,
            dtype=dtype_name(dtype),
            sha256=sha256_of(*weight_files(folder)),
        )
    except (KeyError, ValueError, RuntimeError, TypeError, IndexError, StrictDataclassError) as error:
        if is_out_of_memory(error) or is_lost(error):
            raise  # no fault of the head
        raise UserError(f"The head in {folder} does not fit {target.info.name}: {_why(error)}") from error
    return head


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}."
    if isinstance(error, RuntimeError) and "shape" in str(error):
        return f"it was made for a model of another width ({str(error).strip()})."
    return str(error).strip()


def mismatch(folder: Path, target: LanguageModel) -> str:
    """A sentence if the head was trained on other weights than the target's, else empty (also where nobody knows)."""
    trained_for = read_config(folder).get("specdemo", {}).get("target_sha256", "")
    if not trained_for or not target.info.sha256 or trained_for == target.info.sha256:
        return ""
    return (
        f"The head in {folder} was trained on other weights than those of {target.info.name}: texts stay exact, but "
        "fewer drafts will be accepted."
    )


def _try(head: Head, target: LanguageModel) -> None:
    """Use a head once: weights of another size than the target's would fail later, in the middle of a run. Raises
    ValueError where nobody knows which tokens its predictions stand for."""
    runner = target.runner(8, taps=head.taps)
    runner.prefill([0, 0])
    if isinstance(head, MedusaHeads):
        logits = head.logits(runner.features[-1])
    else:
        ids = torch.zeros(2, dtype=torch.long, device=target.device)
        logits = head.logits(head.forward(head.states(runner.features), ids, KVCache(head, 8)))
    rows, named = logits.shape[-1], target.vocab_size if head.vocab_ids is None else len(head.vocab_ids)
    if rows != named:
        whose = "the target has" if head.vocab_ids is None else '"d2t" names'
        raise ValueError(f"its output layer knows {rows} tokens, and {whose} {named}.")
