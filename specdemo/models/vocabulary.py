"""Reduced vocabularies: draft tokens are numbered by `vocab_ids` [vocab], which gives the target's id of each."""

from __future__ import annotations

import torch
from torch import Tensor


def draft_ids_of(vocab_ids: Tensor, target_tokens: int) -> Tensor:
    """The draft's number of every target id, [target_tokens]; for those outside, the size of the vocabulary."""
    draft_ids = torch.full((target_tokens,), len(vocab_ids), device=vocab_ids.device)
    draft_ids[vocab_ids] = torch.arange(len(vocab_ids), device=vocab_ids.device)
    return draft_ids


def offsets_of(vocab_ids: Tensor) -> Tensor:
    """Target id minus draft number, int32 [vocab]: the form ("d2t") in which published heads keep a vocabulary."""
    return (vocab_ids - torch.arange(len(vocab_ids), device=vocab_ids.device)).int()
