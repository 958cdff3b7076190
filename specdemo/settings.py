"""What a visitor can choose for a run, checked where it is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from specdemo.errors import UserError

Mode = Literal["race", "baseline", "speculative"]

Acceptance = Literal["exact", "typical"]

BEST = "best"
"""The drafter that a pair is fastest with; which one that is, the race knows and its trace says."""

MAX_GAMMA = 16
MAX_DEPTH = 10
MAX_NODES = 64
MAX_TOKENS = 4096


def well_formed(text: str) -> str:
    """The text as Unicode: halves of a character that stand together are joined, a half alone becomes U+FFFD.

    A browser, a JSON escape or an undecodable byte on a command line can leave half an emoji, which no tokenizer reads
    and no UTF-8 writer writes. It is replaced and not refused, since a visitor sees the replacement character for it
    before the run as well, and the trace keeps the prompt that the models read.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(well_formed)]
"""Text from outside: it can be tokenized, and written as UTF-8 or JSON."""


class SamplerSettings(BaseModel):
    """How the next token is drawn. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch a filter off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(0.0, ge=0, le=5)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)


class Settings(SamplerSettings):
    """One run. `seed` fixes every draw: same seed and settings, same text, on the same machine; with sizes chosen live
    they are chosen by what rounds cost, so there the costs have to be the same too, and a trace keeps its own.

    drafter: a name of the registry, or BEST. rival: the drafter of a third lane, which races the first one's; empty for
    none, and none beside a baseline alone.
    The same drafter twice is allowed and shows nothing but the noise of the clocks: it proposes the same drafts.
    gamma: drafts a round; with auto_gamma it is chosen round by round instead (decoding/gamma.py), as it is where
    neither is given: whoever names a gamma alone wants that one. confidence: a draft
    ends where the chance that its next token survives looks smaller; 0 never ends it. depth, nodes: how far a tree of
    drafts reaches and how many a round verifies; with auto_gamma, at most. acceptance: typical is Medusa's rule, for
    trees, and changes the output distribution.
    """

    prompt: Text
    chat: bool = True
    pair: Text = "smollm2-135m"
    drafter: Text = BEST
    rival: Text = ""
    gamma: int = Field(4, ge=1, le=MAX_GAMMA)
    auto_gamma: bool = True
    depth: int = Field(6, ge=1, le=MAX_DEPTH)
    nodes: int = Field(16, ge=1, le=MAX_NODES)
    confidence: float = Field(0.0, ge=0, lt=1)
    acceptance: Acceptance = "exact"
    max_tokens: int = Field(160, ge=1, le=MAX_TOKENS)
    seed: int = Field(0, ge=0, lt=2**63)
    mode: Mode = "race"
    record: bool = True

    @model_validator(mode="before")
    @classmethod
    def _take_the_gamma_given(cls, values: Any) -> Any:
        if isinstance(values, dict) and "gamma" in values and "auto_gamma" not in values:
            return {**values, "auto_gamma": False}
        return values

    @classmethod
    def checked(cls, **values: Any) -> Settings:
        """Settings from untrusted values; raises UserError with one sentence for each that is wrong."""
        try:
            settings = cls(**values)
        except ValidationError as error:
            raise UserError(" ".join(_sentence(item) for item in error.errors())) from None
        if not settings.prompt.strip():
            raise UserError("The prompt is empty. Type something or pick an example.")
        return settings


def _sentence(item: Any) -> str:
    """A pydantic complaint in words: 'Max tokens is 0: it should be greater than or equal to 1.'"""
    name = str(item["loc"][0]).replace("_", " ").capitalize() if item["loc"] else "The settings"
    value = item["input"]
    given = "" if isinstance(value, dict) else " is empty" if value is None else f" is {value!r}"
    reason = item["msg"][0].lower() + item["msg"][1:]
    return f"{name}{given}: {reason.replace('input should', 'it should')}."
