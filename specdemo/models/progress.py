"""How far a slow piece of work has come, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with a short sentence and the share done, 0 to 1, or None where nobody can tell."""


def silent(message: str, fraction: float | None) -> None:
    """Progress that nobody watches."""
