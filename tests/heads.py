"""Small heads with random weights: they draft nonsense, and texts must be the target's all the same."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig

from specdemo.models.eagle import EagleHead
from specdemo.models.heads import Head
from specdemo.models.medusa import MedusaHeads
from specdemo.models.runner import LanguageModel


def heads_for(target: LanguageModel, broken: bool = False) -> dict[str, Head]:
    """One of each kind; the EAGLE head knows all of the target's tokens but the first. broken: a row of NaN in each."""
    return {"eagle": eagle_head(target, broken), "medusa": medusa_heads(target, broken=broken)}


def eagle_head(target: LanguageModel, broken: bool = False) -> EagleHead:
    """Reads what enters layer 0 and what leaves the last norm."""
    width = target.embed(torch.zeros(1, dtype=torch.long, device=target.device)).shape[-1]
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 30.0},
        taps=[0, target.depth + 1],
    )
    known, random = target.vocab_size - 1, _Random(0)
    shapes = {
        "fc": (width, 2 * width),
        "midlayer.self_attn.q_proj": (width, 2 * width),
        "midlayer.self_attn.k_proj": (width // 2, 2 * width),
        "midlayer.self_attn.v_proj": (width // 2, 2 * width),
        "midlayer.self_attn.o_proj": (width, width),
        "midlayer.mlp.gate_proj": (2 * width, width),
        "midlayer.mlp.up_proj": (2 * width, width),
        "midlayer.mlp.down_proj": (width, 2 * width),
        "lm_head": (known, width),
    }
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    tensors = {f"{name}.weight": random(*shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(width) for name in norms}
    if broken:
        tensors["lm_head.weight"][1] = torch.nan
    tensors["d2t"] = torch.ones(known, dtype=torch.int32)
    return EagleHead(config, tensors, target, torch.float32)


def medusa_heads(target: LanguageModel, heads: int = 3, broken: bool = False) -> MedusaHeads:
    """Two residual blocks a head, and one output layer for all."""
    width, random = target.embed(torch.zeros(1, dtype=torch.long, device=target.device)).shape[-1], _Random(1)
    tensors: dict[str, Tensor] = {"lm_head.weight": random(target.vocab_size, width)}
    if broken:
        tensors["lm_head.weight"][1] = torch.nan
    tensors["d2t"] = torch.zeros(target.vocab_size, dtype=torch.int32)
    for head in range(heads):
        for block in range(2):
            tensors[f"{head}.{block}.linear.weight"] = random(width, width)
            tensors[f"{head}.{block}.linear.bias"] = random(width)
    return MedusaHeads({"medusa_num_heads": heads, "medusa_num_layers": 2}, tensors, target, torch.float32)


class _Random:
    """Large enough that predictions change with what is read."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator) * 0.7
