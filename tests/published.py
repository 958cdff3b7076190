"""Heads as others publish them: random weights under published names, and what they should compute.

The references are written from the papers and from what the published code does, without this project's forward pass:
every step reads the whole text again, position by position, in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

WIDTH, VOCAB, LAYERS = 16, 12, 8  # of the target
HEADS, SHARED, DIM, THETA, EPS = 4, 2, 4, 100.0, 1e-5  # of the head's layer
DRAFT_IDS = [0, 2, 3, 5, 6, 7, 8, 10, 11]  # the target's tokens that a reduced vocabulary holds

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "num_hidden_layers": 1,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "rope_scaling": None,
    "vocab_size": VOCAB,
    "torch_dtype": "float16",
}

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Published:
    """weights: by the names of the method's authors, which the references use. `file` decides the format; `renamed` is
    what the publisher calls them. taps: the target's depths that EAGLE-3 reads."""

    file: str
    config: dict
    weights: Weights
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    prefix: str = ""
    extra: Weights = field(default_factory=dict)
    taps: tuple[int, ...] = (2, LAYERS // 2, LAYERS - 3)
    norm_first: bool = False

    @property
    def tensors(self) -> Weights:
        given = {name: value for name, value in self.weights.items() if name not in self.dropped}
        return {self.prefix + self._name(name): value for name, value in given.items()} | self.extra

    def _name(self, name: str) -> str:
        for own, theirs in self.renamed.items():
            if name.startswith(own):
                return theirs + name.removeprefix(own)
        return name


class _Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * 0.4

    def norm(self, width: int = WIDTH) -> Tensor:
        return 1 + 0.3 * torch.randn(width, generator=self.generator)


def _layer(random: _Random, at: str, inputs: int) -> Weights:
    inside, shared, mlp = HEADS * DIM, SHARED * DIM, LLAMA_CONFIG["intermediate_size"]
    shapes = {
        "self_attn.q_proj": (inside, inputs),
        "self_attn.k_proj": (shared, inputs),
        "self_attn.v_proj": (shared, inputs),
        "self_attn.o_proj": (WIDTH, inside),
        "mlp.gate_proj": (mlp, WIDTH),
        "mlp.up_proj": (mlp, WIDTH),
        "mlp.down_proj": (WIDTH, mlp),
    }
    weights = {f"{at}{name}.weight": random.matrix(*shape) for name, shape in shapes.items()}
    return weights | {f"{at}post_attention_layernorm.weight": random.norm()}


def eagle(seed: int, **parts: bool) -> Weights:
    """EAGLE and EAGLE-2. parts: bias, embedding, output, norm (in front of the layer, as serving engines have it)."""
    random = _Random(seed)
    weights = {"fc.weight": random.matrix(WIDTH, 2 * WIDTH)} | _layer(random, "layers.0.", WIDTH)
    if parts.get("bias"):
        weights["fc.bias"] = random.matrix(WIDTH)
    if parts.get("embedding"):
        weights["embed_tokens.weight"] = random.matrix(VOCAB, WIDTH)
    if parts.get("output"):
        weights["lm_head.weight"] = random.matrix(VOCAB + 4, WIDTH)  # padded
    if parts.get("norm"):
        weights["layers.0.input_layernorm.weight"] = random.norm()
    return weights


def eagle3(seed: int, **parts: bool) -> Weights:
    """EAGLE-3. parts: embedding, whole (the target's vocabulary instead of a reduced one)."""
    random = _Random(seed)
    rows = VOCAB if parts.get("whole") else len(DRAFT_IDS)
    weights = {
        "fc.weight": random.matrix(WIDTH, 3 * WIDTH),
        "midlayer.input_layernorm.weight": random.norm(),
        "midlayer.hidden_norm.weight": random.norm(),
        "norm.weight": random.norm(),
        "lm_head.weight": random.matrix(rows, WIDTH),
    } | _layer(random, "midlayer.", 2 * WIDTH)
    if parts.get("embedding"):
        weights["embed_tokens.weight"] = random.matrix(VOCAB, WIDTH)
    if not parts.get("whole"):
        ids = torch.tensor(DRAFT_IDS)
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    return weights


def medusa(seed: int, heads: int, blocks: int, own: bool = True, bias: bool = True, tied: bool = False) -> Weights:
    """Medusa. own: an output layer a head. tied: the blocks of a head are one block, as in the first published ones."""
    random, weights = _Random(seed), {}
    for head in range(heads):
        for block in range(blocks):
            first = f"{head}.0.linear"
            again = tied and block > 0
            name = f"{head}.{block}.linear"
            weights[f"{name}.weight"] = weights[f"{first}.weight"] if again else random.matrix(WIDTH, WIDTH)
            if bias:
                weights[f"{name}.bias"] = weights[f"{first}.bias"] if again else random.matrix(WIDTH)
        if own:
            weights[f"{head}.{blocks}.weight"] = random.matrix(VOCAB + 4, WIDTH)  # padded
    return weights


# --- What they compute ---


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def _rotated(x: Tensor, position: int) -> Tensor:
    """One head's vector [dim] at a position: dimension i turns with dimension i + dim / 2 (2104.09864, as in Llama)."""
    half = DIM // 2
    turned = x.clone()
    for i in range(half):
        angle = position * THETA ** (-2 * i / DIM)
        turned[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        turned[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return turned


def _through_layer(inputs: list[Tensor], residuals: list[Tensor], w: Weights, at: str) -> Tensor:
    """What leaves the layer at the last position."""
    get = lambda name: w[f"{at}{name}.weight"]  # noqa: E731
    last = len(inputs) - 1
    mixed = []
    for head in range(HEADS):
        own, group = slice(head * DIM, (head + 1) * DIM), head // (HEADS // SHARED)
        shared = slice(group * DIM, (group + 1) * DIM)
        query = _rotated(get("self_attn.q_proj")[own] @ inputs[last], last)
        keys = [_rotated(get("self_attn.k_proj")[shared] @ x, i) for i, x in enumerate(inputs)]
        values = torch.stack([get("self_attn.v_proj")[shared] @ x for x in inputs])
        scores = torch.stack([query @ key for key in keys]) / math.sqrt(DIM)
        mixed.append(scores.softmax(0) @ values)
    x = residuals[last] + get("self_attn.o_proj") @ torch.cat(mixed)
    y = _rms(x, get("post_attention_layernorm"))
    gate = get("mlp.gate_proj") @ y
    return x + get("mlp.down_proj") @ (gate * gate.sigmoid() * (get("mlp.up_proj") @ y))


def eagle_logits(published: Published, oracle: LlamaForCausalLM, text: list[int], draft: list[int]) -> Tensor:
    """Logits behind the text and behind each drafted token, [1 + drafts, its vocabulary], of a chain."""
    w = {name: value.double() for name, value in published.weights.items()}
    table = w.get("embed_tokens.weight", oracle.get_input_embeddings().weight.double())
    # The last token's state is what the target has not computed yet.
    states = [h.double() for h in oracle(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states]
    joins_depths = "midlayer.hidden_norm.weight" in w
    if joins_depths:
        seen = [w["fc.weight"] @ torch.cat([states[tap][0, t] for tap in published.taps]) for t in range(len(text) - 1)]
    else:
        seen = list(states[-1][0])
    tokens = [*text[1:], *draft]
    inputs: list[Tensor] = []
    residuals: list[Tensor] = []
    logits = []
    for position, token in enumerate(tokens):
        state, embedded = seen[position], table[token]
        if joins_depths:
            normed = _rms(state, w["midlayer.hidden_norm.weight"])
            inputs.append(torch.cat((_rms(embedded, w["midlayer.input_layernorm.weight"]), normed)))
            residuals.append(normed if published.norm_first else state)
        else:
            joined = w["fc.weight"] @ torch.cat((embedded, state)) + w.get("fc.bias", torch.zeros(WIDTH).double())
            norm = w.get("layers.0.input_layernorm.weight")
            inputs.append(joined if norm is None else _rms(joined, norm))
            residuals.append(joined)
        if position >= len(text) - 2:
            out = _through_layer(inputs, residuals, w, "midlayer." if joins_depths else "layers.0.")
            seen.append(out)
            output = w.get("lm_head.weight", oracle.get_output_embeddings().weight.double())
            logits.append(output[:VOCAB] @ (_rms(out, w["norm.weight"]) if joins_depths else out))
    return torch.stack(logits)


def medusa_logits(published: Published, oracle: LlamaForCausalLM, text: list[int]) -> Tensor:
    """Logits [heads, vocab] from the state of the text's last token."""
    w = {name: value.double() for name, value in published.weights.items()}
    state = oracle(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, -1].double()
    logits = []
    head = 0
    while f"{head}.0.linear.weight" in w:
        x, block = state, 0
        while f"{head}.{block}.linear.weight" in w:
            y = w[f"{head}.{block}.linear.weight"] @ x + w.get(
                f"{head}.{block}.linear.bias", torch.zeros(WIDTH).double()
            )
            x, block = x + y * y.sigmoid(), block + 1
        output = w.get(f"{head}.{block}.weight", oracle.get_output_embeddings().weight.double())
        logits.append(output[:VOCAB] @ x)
        head += 1
    return torch.stack(logits)
