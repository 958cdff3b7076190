"""transformers' own decoders on the same weights and prompts: what this project has to be compared with.

`generate` plain, assisted by the same draft (Gante 2023) with the same gamma and with its defaults, and with its prompt
lookup. Times are taken where tokens come out: by the streamer that `generate` calls with every burst.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging as transformers_logging

from specdemo.bench.contenders import NEVER, Contender, Written
from specdemo.errors import UserError
from specdemo.metrics import LaneMetrics
from specdemo.models.device import DTYPES
from specdemo.models.files import read_weights
from specdemo.models.loading import LoadedPair, resolve
from specdemo.settings import Settings


class WideDraft(LlamaForCausalLM):
    """A draft of a reduced vocabulary for code that expects the target's: ids go in and logits come out at full width.

    A token that the draft cannot propose has a logit of -inf, as it has q = 0 here.
    """

    def __init__(self, config: LlamaConfig, vocab_ids: Tensor, target_vocab: int) -> None:
        super().__init__(config)
        rows = torch.full((target_vocab,), len(vocab_ids))
        rows[vocab_ids] = torch.arange(len(vocab_ids))
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("vocab_ids", vocab_ids, persistent=False)
        self.config.vocab_size = target_vocab

    def forward(self, input_ids: Tensor, **more):
        """As LlamaForCausalLM's, over the target's ids [batch, k]."""
        out = super().forward(self.rows[input_ids], **more)
        wide = out.logits.new_full((*out.logits.shape[:2], len(self.rows)), -torch.inf)
        out.logits = wide.index_copy_(2, self.vocab_ids, out.logits[..., : len(self.vocab_ids)])
        return out


@dataclass
class _Bursts(BaseStreamer):
    """Notes when how many tokens came."""

    started: float = field(default_factory=time.perf_counter)
    bursts: list[tuple[float, int]] = field(default_factory=list)
    total: int = -1  # the first thing that `generate` puts is the prompt

    def put(self, value: Tensor) -> None:
        if self.total < 0:
            self.total = 0
            return
        self.total += value.numel()
        self.bursts.append((time.perf_counter() - self.started, self.total))

    def end(self) -> None:
        """Nothing is left to flush."""


@dataclass(frozen=True)
class Generate:
    """`transformers.generate` in one of its modes: `how` are its arguments, `assistant` the settings of its draft."""

    name: str
    loaded: LoadedPair
    model: PreTrainedModel
    how: dict = field(default_factory=dict)
    assistant: dict = field(default_factory=dict)

    def write(self, settings: Settings, stop: threading.Event = NEVER) -> Written:
        """See `Contender`. `generate` ends its text once begun."""
        prompt = self.loaded.tokens.encode(settings.prompt, settings.chat)
        if "assistant_model" in self.how:
            self.how["assistant_model"].generation_config = GenerationConfig(**self.assistant)
        sampling = (
            {"do_sample": False}
            if settings.temperature == 0
            else {"do_sample": True, "temperature": settings.temperature, "top_k": settings.top_k or None}
            | {"top_p": settings.top_p, "min_p": settings.min_p or None}
        )
        torch.manual_seed(settings.seed)
        ids = torch.tensor([prompt], device=self.model.device)
        times = _Bursts()
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.max_tokens,
            eos_token_id=sorted(self.loaded.tokens.eos_ids) or None,
            pad_token_id=0,
            streamer=times,
            **sampling,
            **self.how,
        )
        metrics = LaneMetrics(
            rounds=len(times.bursts),
            tokens=times.total,
            clock=times.bursts[-1][0],
            bursts=times.bursts,
            prefill_known=False,
        )
        return Written(out[0, len(prompt) :].tolist(), metrics)


def peers(loaded: LoadedPair, gamma: int) -> list[Contender]:
    """transformers' decoders for this pair: same checkpoint, device and dtype. Raises UserError without a folder."""
    transformers_logging.set_verbosity_error()  # it warns of what it does itself, once a run
    device, dtype = loaded.target.device, DTYPES[loaded.target.info.dtype]
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(resolve(loaded.pair.target)[1], dtype=dtype).eval().to(device)
    model.generation_config = GenerationConfig()
    found: list[Contender] = [Generate("transformers.generate", loaded, model)]
    if loaded.pair.draft:
        draft = _draft(loaded, dtype).eval().to(device)
        same = {
            "num_assistant_tokens": gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        found += [
            Generate(f"transformers, assisted, gamma {gamma}", loaded, model, {"assistant_model": draft}, same),
            Generate("transformers, assisted, its defaults", loaded, model, {"assistant_model": draft}),
        ]
    return [*found, Generate("transformers, prompt lookup", loaded, model, {"prompt_lookup_num_tokens": 10})]


def _draft(loaded: LoadedPair, dtype: torch.dtype) -> PreTrainedModel:
    folder = Path(resolve(loaded.pair.draft)[1])
    weights = read_weights(folder)
    if "vocab_ids" not in weights:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    vocab_ids = weights.pop("vocab_ids").long()
    model = WideDraft(LlamaConfig.from_pretrained(folder), vocab_ids, loaded.target.vocab_size)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise UserError(f"The draft in {folder} has other weights than its config says: {missing or unexpected}.")
    model.tie_weights()
    return model.to(dtype)
