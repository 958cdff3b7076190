"""One generation, as the decoders are asked for it, and the bookkeeping that both of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from specdemo.decoding.clock import Clock
from specdemo.decoding.text import TextStream
from specdemo.events import End, EndReason, Prefill
from specdemo.models.runner import Runner, chunks
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class Request:
    """A prompt [n >= 1 token ids] and how to continue it.

    eos_ids may be empty: the text then ends at max_tokens or at the context limit, whichever comes first. decode
    turns ids into text. record asks for top lists in the events. typical accepts by Medusa's rule, which is not exact.
    stop is asked between any two model calls.
    """

    prompt: list[int]
    sampler: SamplerSettings
    max_tokens: int
    decode: Callable[[list[int]], str]
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0
    record: bool = False
    typical: bool = False
    stop: Callable[[], bool] = lambda: False


def no_distribution(model: str, token: int) -> str:
    """What to say of a model whose logits for a token are NaN or infinite."""
    return (
        f"{model} computed no probabilities for token {token} (its logits are NaN or infinite): the text ends there. "
        "Its weights may be damaged, or too large for 16 bits: load them again, or start with --dtype fp32."
    )


@dataclass
class Transcript:
    """A lane's text so far. `context` is the prompt and everything emitted: the single truth about position."""

    request: Request
    runner: Runner
    context: list[int] = field(init=False)
    text: TextStream = field(init=False)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.context = list(self.request.prompt)
        self.text = TextStream(self.request.decode, self.request.prompt, self.request.eos_ids, self.room)

    @property
    def tokens(self) -> int:
        """Tokens emitted."""
        return len(self.context) - len(self.request.prompt)

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return min(self.request.max_tokens - self.tokens, self.runner.capacity - len(self.context))

    def ended(self) -> EndReason | None:
        """Why nothing more may be emitted, or None."""
        if self.tokens and self.context[-1] in self.request.eos_ids:
            return "eos"
        if self.tokens >= self.request.max_tokens:
            return "max_tokens"
        if self.room <= 0:
            return "context"
        return "stopped" if self.request.stop() else None

    def end(self, reason: EndReason, clock: Clock) -> End:
        return End(reason=reason, tokens=self.tokens, clock=clock.seconds)

    def failed(self, model: str, clock: Clock) -> End:
        """The target's logits for the next token are no distribution, so there is nothing to draw from."""
        return End(
            reason="error",
            tokens=self.tokens,
            clock=clock.seconds,
            message=no_distribution(model, self.tokens),
            model=model,
        )

    def prefill(self, clock: Clock) -> Iterator[Prefill]:
        """Read all of the prompt but its last token, whose pass will predict the first new one."""
        for chunk in chunks(self.request.prompt[:-1]):
            if self.request.stop():
                return
            clock.start()
            self.runner.prefill(chunk)
            clock.stop()
            yield self.prefilled(clock)

    def prefilled(self, clock: Clock) -> Prefill:
        return Prefill(done=self.runner.length, total=len(self.request.prompt) - 1, clock=clock.seconds)
