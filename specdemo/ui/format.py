"""Numbers as the page writes them: what assets/js/format.js writes, to the digit, so that a sentence of the verdict and
the figure beside it cannot disagree. Both are given the number itself, never one that was rounded before.
"""

from __future__ import annotations

from specdemo.metrics import fixed


def rate(n: float) -> str:
    """Tokens per second."""
    return fixed(n, 1 if n < 100 else 0)


def ratio(n: float) -> str:
    return fixed(n, 2)


def percent(n: float) -> str:
    """A share; its sign stays on its line."""
    return f"{fixed(100 * n, 0)}\u00a0%"


def milliseconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{fixed(seconds, 2)}\u00a0s"
    return f"{fixed(seconds * 1000, 1 if seconds < 0.01 else 0)}\u00a0ms"
