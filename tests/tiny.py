"""Small random transformers: real runners and caches, vocabularies small enough to enumerate every text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdemo.events import ModelInfo
from specdemo.models.datastore import Datastore
from specdemo.models.lean import LeanModel
from specdemo.models.lean_runner import LeanLanguageModel
from specdemo.models.runner import LanguageModel
from specdemo.models.transformers_runner import TransformersLanguageModel

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Tiny:
    """A random Llama, as transformers knows it (the oracle) and as specdemo runs it.

    Weights are large, so that distributions are far from uniform and change with every token of the context.
    """

    vocab: int
    seed: int
    layers: int = 2
    max_length: int = 64
    width: int = 16
    device: str = "cpu"

    @cached_property
    def oracle(self) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=self.max_length,
            initializer_range=0.5,
            rope_parameters={"rope_type": "default", "rope_theta": 30.0},
            tie_word_embeddings=False,
        )
        torch.manual_seed(self.seed)
        return LlamaForCausalLM(config).eval().to(self.device)

    @cached_property
    def lean(self) -> LeanLanguageModel:
        model = LeanModel(self.oracle.config, self.oracle.state_dict(), torch.device(self.device), torch.float32)
        return LeanLanguageModel(model, self._info, self.vocab)

    @cached_property
    def transformers(self) -> LanguageModel:
        return TransformersLanguageModel(self.oracle, self._info, self.vocab)

    @property
    def _info(self) -> ModelInfo:
        return ModelInfo(name="tiny", parameters=self.oracle.num_parameters(), dtype="fp32")


STORE = Datastore([np.random.default_rng(seed).integers(0, 3, 300).astype(np.uint16) for seed in range(4)])
"""Text for retrieval: random tokens below 3, in which most sequences of four occur."""
