"""What a round costs on this machine, in units of one plain target step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from specdemo.settings import MAX_NODES

_Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Costs:
    """c: a draft step, drawing its token included (each drafter has its own). v: passes over 1, 2, ... tokens, v[0]
    being 1. o: warping and deciding over a draft, beyond what a plain step has of it. step: seconds of a pass over one
    token, the unit. read: each further token that a draft step has to read first, since it was written without it."""

    c: _Share
    v: Annotated[tuple[_Time, ...], Field(min_length=1)]
    o: Annotated[float, Field(allow_inf_nan=False)]
    step: _Time = 1.0
    read: _Share = 0.0

    def round(self, steps: int, drafted: int, behind: int = 0) -> float:
        """A round in which `steps` draft steps gave `drafted` tokens, `behind` tokens read before."""
        return (
            steps * self.c + behind * self.read + self.v[min(drafted, len(self.v) - 1)] + (self.o if drafted else 0.0)
        )


TEXTBOOK = Costs(c=0.05, v=(1.0,) * (MAX_NODES + 1), o=0.0)
"""Where nothing has been measured: verification is free and a draft step nearly so."""
