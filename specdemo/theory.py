"""What speculation should gain: the formulas of Leviathan et al. 2023 (2211.17192), section 3, with measured costs.

alpha is the per-token acceptance rate, c the cost of a draft step, v of a verification pass over gamma + 1 tokens
and o of the rest of a round, each in units of one plain target step.
"""

from __future__ import annotations


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of a round, (1 - alpha^(gamma + 1)) / (1 - alpha), if every draft is accepted with alpha."""
    if alpha >= 1:
        return gamma + 1.0
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def speedup(tokens_per_round: float, gamma: float, c: float, v: float = 1.0, o: float = 0.0) -> float:
    """Tokens per unit of target time against plain decoding: E / (gamma c + v + o).

    The textbook has v = 1 and o = 0, true where decoding is bound by memory. `gamma` may be a mean.
    """
    return tokens_per_round / (gamma * c + v + o)
