"""The oracle: exact distributions of short texts by enumeration, and the chi-square test against them.

Nothing here uses specdemo's own forward pass or warping: the models and the logits processors are transformers'.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import torch
from scipy.stats import chi2
from transformers import (
    LlamaForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdemo.settings import SamplerSettings

Text = tuple[int, ...]


@torch.inference_mode()
def joint_distribution(
    model: LlamaForCausalLM, prompt: list[int], length: int, sampler: SamplerSettings
) -> dict[Text, float]:
    """Probability of every text of `length` tokens behind the prompt."""
    vocab = model.config.vocab_size
    texts = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    ids = torch.cat([torch.tensor(prompt).repeat(len(texts), 1), texts], dim=1)
    logits = torch.cat([model(part).logits for part in ids.split(512)])[:, len(prompt) - 1 : -1]
    probs = warped(logits.reshape(-1, vocab).double(), sampler).view(len(texts), length, vocab)
    each = probs.gather(-1, texts[..., None])[..., 0].prod(-1)
    return {tuple(text): float(p) for text, p in zip(texts.tolist(), each, strict=True) if p > 0}


def warped(logits: torch.Tensor, sampler: SamplerSettings) -> torch.Tensor:
    if sampler.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(sampler.temperature))])
    if sampler.top_k:
        warpers.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1:
        warpers.append(TopPLogitsWarper(sampler.top_p))
    if sampler.min_p > 0:
        warpers.append(MinPLogitsWarper(sampler.min_p))
    return warpers(None, logits).softmax(-1)


def p_value(samples: Iterable[Text], expected: dict[Text, float]) -> float:
    """Chi-square test of sampled texts against their exact probabilities; cells are pooled to at least 5 expected.

    A text that is impossible gives 0 at once.
    """
    counts = Counter(samples)
    if any(text not in expected for text in counts):
        return 0.0
    total = counts.total()
    cells: list[tuple[float, int]] = []
    pooled_expected, pooled_seen = 0.0, 0
    for text in sorted(expected, key=expected.__getitem__):
        pooled_expected += expected[text] * total
        pooled_seen += counts[text]
        if pooled_expected >= 5:
            cells.append((pooled_expected, pooled_seen))
            pooled_expected, pooled_seen = 0.0, 0
    if len(cells) < 2:
        return 1.0  # one possible text (greedy), and it was the one seen
    cells[-1] = (cells[-1][0] + pooled_expected, cells[-1][1] + pooled_seen)
    statistic = sum((seen - want) ** 2 / want for want, seen in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
