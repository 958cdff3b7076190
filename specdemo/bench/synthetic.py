"""Speeds without models: random weights of real sizes, for machines that cannot download any.

Arithmetic takes the time it takes whatever the weights say, so a plain step, a pass over gamma + 1 tokens and a draft
step are measured as they are. What random weights cannot give is acceptance: here every draft is accepted with a fixed
chance, drawn by chance, and all that it decides is how far a round advances. The figures are labelled synthetic.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from pydantic import BaseModel
from torch import Tensor
from transformers import LlamaConfig

from specdemo.bench.roofline import Roofline, roofline
from specdemo.drafters.draft_model import spread
from specdemo.events import Machine, ModelInfo
from specdemo.models.device import dtype_name, enter, seconds_of
from specdemo.models.lean import LeanModel
from specdemo.models.lean_runner import LeanLanguageModel, LeanRunner
from specdemo.models.progress import Progress, silent
from specdemo.race import machine
from specdemo.sampling import draw, probabilities, verify
from specdemo.settings import SamplerSettings

_PROMPT = 128  # tokens in the cache when times are taken
_TURNS = 3
_GREEDY = SamplerSettings(temperature=0)


@dataclass(frozen=True)
class Size:
    """A Llama's shape."""

    width: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int
    vocab: int = 49152

    def config(self, max_length: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            intermediate_size=self.mlp,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=max_length,
            tie_word_embeddings=True,
        )


SIZES = {
    "135m": Size(576, 30, 1536, 9, 3),
    "1.7b": Size(2048, 24, 8192, 32, 32),
    "8b": Size(4096, 32, 14336, 32, 8, 128_256),
    "draft": Size(288, 3, 768, 4, 2, 9728),
    "tiny": Size(64, 2, 96, 4, 2, 512),
}


TARGETS = [name for name in SIZES if name != "draft"]


class Synthetic(BaseModel):
    """All of it. Times in seconds. passes: k -> T(k)/T(1). c: draft step / target step. alpha: as it was set."""

    synthetic: bool = True
    machine: Machine
    target: ModelInfo
    draft: ModelInfo
    plain_rate: float
    step: float
    passes: dict[int, float]
    roofline: Roofline
    alpha: float
    gamma: int
    c: float
    speculative_rate: float
    speedup: float
    tokens_per_pass: float

    def summary(self) -> str:
        """All of it in a few lines."""
        ratios = ", ".join(f"{k}: {ratio:.2f}" for k, ratio in self.passes.items())
        return (
            f"SYNTHETIC: {self.target.name}, {self.target.parameters / 1e9:.2f} B random weights, "
            f"{self.target.dtype}, {self.machine.processor}\n"
            f"plain: {self.plain_rate:.1f} tokens/s, {1e3 * self.step:.2f} ms a step\n{self.roofline.sentence()}\n"
            f"T(k)/T(1): {ratios}\n"
            f"speculative, gamma {self.gamma}, acceptance fixed at {self.alpha}: {self.speculative_rate:.1f} tokens/s, "
            f"{self.speedup:.2f} x, {self.tokens_per_pass:.2f} tokens a pass, c = {self.c:.3f}"
        )


def run(
    target_size: str,
    device: torch.device,
    dtype: torch.dtype,
    tokens: int = 128,
    alpha: float = 0.8,
    gamma: int = 4,
    say: Progress = silent,
) -> Synthetic:
    """Measure everything on one device; plain and speculative decoding in turn, medians of three."""
    enter(device)
    room = _PROMPT + tokens + 2 * gamma + 20
    draft_size = "tiny" if target_size == "tiny" else "draft"
    say("making random weights", 0.0)
    target, draft = (random_model(name, device, dtype, room) for name in (target_size, draft_size))
    passes = {}
    for k in range(1, 10):
        say(f"passes over {k} tokens", 0.1 + 0.03 * k)
        passes[k] = _pass_seconds(target, k)
    turns = []
    for turn in range(_TURNS):
        say(f"decoding, turn {turn + 1} of {_TURNS}", 0.4 + 0.6 * turn / _TURNS)
        turns.append((_plain(target, tokens), *_speculative(target, draft, tokens, alpha, gamma)))
    plain, drafted = (statistics.median(turn[which] for turn in turns) for which in (0, 1))
    rounds = turns[0][2]
    return Synthetic(
        machine=machine(device),
        target=target.info,
        draft=draft.info,
        plain_rate=tokens / plain,
        step=passes[1],
        passes={k: seconds / passes[1] for k, seconds in passes.items()},
        roofline=roofline(target, _PROMPT + tokens / 2, plain / tokens),
        alpha=alpha,
        gamma=gamma,
        c=_pass_seconds(draft, 1) / passes[1],
        speculative_rate=tokens / drafted,
        speedup=plain / drafted,
        tokens_per_pass=tokens / rounds,
    )


def random_model(size: str, device: torch.device, dtype: torch.dtype, room: int) -> LeanLanguageModel:
    """A Llama of that size with random weights, made on the device."""
    config = SIZES[size].config(room)
    weights = _weights(SIZES[size], device, dtype)
    count = sum(value.numel() for value in weights.values())
    info = ModelInfo(name=f"random {size}", parameters=count, dtype=dtype_name(dtype))
    return LeanLanguageModel(LeanModel(config, weights, device, dtype), info, SIZES[size].vocab)


def _weights(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    make = lambda *shape: torch.randn(*shape, device=device, dtype=dtype) * shape[-1] ** -0.5  # noqa: E731
    ones = lambda: torch.ones(size.width, device=device, dtype=dtype)  # noqa: E731
    head = size.width // size.heads
    weights = {"model.embed_tokens.weight": make(size.vocab, size.width), "model.norm.weight": ones()}
    for i in range(size.layers):
        at = f"model.layers.{i}."
        weights |= {
            f"{at}input_layernorm.weight": ones(),
            f"{at}post_attention_layernorm.weight": ones(),
            f"{at}self_attn.q_proj.weight": make(size.width, size.width),
            f"{at}self_attn.k_proj.weight": make(size.kv_heads * head, size.width),
            f"{at}self_attn.v_proj.weight": make(size.kv_heads * head, size.width),
            f"{at}self_attn.o_proj.weight": make(size.width, size.width),
            f"{at}mlp.gate_proj.weight": make(size.mlp, size.width),
            f"{at}mlp.up_proj.weight": make(size.mlp, size.width),
            f"{at}mlp.down_proj.weight": make(size.width, size.mlp),
        }
    return weights


def _pass_seconds(model: LeanLanguageModel, k: int, repeats: int = 12) -> float:
    """Seconds of a pass over k tokens, the mean of a few launched one behind the other."""
    runner = _filled(model, [k])
    ids = torch.zeros(k, dtype=torch.long, device=model.device)

    def once() -> None:
        runner.forward(ids)
        runner.rollback(_PROMPT)

    for _ in range(3):
        once()
    return seconds_of(lambda: [once() for _ in range(repeats)], model.device) / repeats


def _plain(target: LeanLanguageModel, tokens: int) -> float:
    """Seconds of greedy decoding, sampling and its wait for every token included."""
    runner = _filled(target, [1])
    u = torch.full((1,), 0.5, device=target.device)

    def write() -> None:
        ids = torch.zeros(1, dtype=torch.long, device=target.device)
        for _ in range(tokens):
            ids = draw(probabilities(runner.forward(ids), _GREEDY), u)
            int(ids)

    write()
    runner.rollback(_PROMPT)
    return seconds_of(write, target.device)


def _speculative(
    target: LeanLanguageModel, draft: LeanLanguageModel, tokens: int, alpha: float, gamma: int
) -> tuple[float, int]:
    """Seconds and rounds of speculative decoding: real drafts and a real test, whose outcome is then replaced."""
    runner, drafter = _filled(target, [gamma + 1]), _filled(draft, [1, 2])
    chance = torch.Generator().manual_seed(0)
    u = torch.full((gamma + 1,), 0.5, device=target.device)
    rounds = 0

    def write() -> None:
        nonlocal rounds
        at, rounds = 0, 0
        while at < tokens:
            ids, q = _draft(drafter, gamma, target.vocab_size)
            last = torch.zeros(1, dtype=torch.long, device=target.device)
            p = probabilities(runner.forward(torch.cat((last, ids))), _GREEDY)
            verdict = verify(p, q, ids, u[:-1], u[-1])
            torch.stack((verdict.accepted, verdict.token)).tolist()  # the round's one wait
            kept = (torch.rand(gamma, generator=chance) < alpha).long().cumprod(0).sum().item()
            kept = min(kept, tokens - at - 1)
            runner.rollback(_PROMPT + at + kept + 1)
            drafter.rollback(min(drafter.length, _PROMPT + at + kept + 1))
            at, rounds = at + kept + 1, rounds + 1

    write()
    runner.rollback(_PROMPT)
    drafter.rollback(_PROMPT)
    return seconds_of(write, target.device), rounds


def _draft(drafter: LeanRunner, gamma: int, vocab: int) -> tuple[Tensor, Tensor]:
    ids, rows = [], []
    new = torch.zeros(1, dtype=torch.long, device=drafter.weights.device)
    u = torch.full((1,), 0.5, device=new.device)
    for _ in range(gamma):
        q = probabilities(drafter.forward(new)[-1], _GREEDY)
        new = draw(q, u)
        ids.append(new)
        rows.append(q)
    return torch.cat(ids), spread(drafter.weights, torch.stack(rows), vocab)


def _filled(model: LeanLanguageModel, passes: list[int]) -> LeanRunner:
    runner = model.runner(model.max_length, passes=passes)
    runner.prefill([0] * _PROMPT)
    return runner
