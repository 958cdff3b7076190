"""`python -m pytest -p tests.fakecuda.plugin FILE`: the tests in FILE see pretended CUDA devices."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.fakecuda.install import install

NEEDED_FIRST = (AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM)
"""Imported while torch still says that there is no CUDA: some of transformers' modules go other ways where there is."""

torch.set_num_threads(1)
install()
