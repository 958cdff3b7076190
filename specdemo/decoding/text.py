"""Token ids to text, one token at a time, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

_INCOMPLETE = "\ufffd"  # how a decoder shows bytes that are not (yet) a character
_LONGEST_CHARACTER = 4  # bytes, hence tokens, that one character can be split over
_LEFT_CONTEXT = 4  # tokens decoded along on the left: some tokenizers drop the space of a first token


class _State(NamedTuple):
    """left: tokens whose text was given. pending: those behind them, the last of which ends within a character; of
    their text `given` characters were given, none of them by the last `waited` tokens. room: tokens that may follow.
    """

    left: list[int]
    pending: list[int]
    given: int = 0
    waited: int = 0
    room: float = math.inf


class TextStream:
    """Gives each token the piece of text that it completes; the pieces joined are the text.

    A tokenizer may split one character (an emoji, most Japanese) over several tokens: all but the last of them get
    an empty piece. A token may also end one character and begin the next (Thai in large vocabularies): it gets the
    one that it ends. Where the text ends within a character, its last token gets what there is of it. Tokens in
    `silent` (those that end the text) have no text of their own; `room` tokens end it in any case.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        prompt: Sequence[int] = (),
        silent: Collection[int] = (),
        room: float = math.inf,
    ) -> None:
        self._decode, self._silent = decode, silent
        self._state = _State(list(prompt[-_LEFT_CONTEXT:]), [], room=room)

    def push(self, token: int) -> str:
        """Append a token; the text that it completes."""
        piece, self._state = self._step(self._state, token)
        return piece

    def peek(self, tokens: Sequence[int]) -> list[str]:
        """The pieces that these tokens would get, without appending them."""
        state, pieces = self._state, []
        for token in tokens:
            piece, state = self._step(state, token)
            pieces.append(piece)
        return pieces

    def _step(self, state: _State, token: int) -> tuple[str, _State]:
        is_end, room = token in self._silent, state.room - 1
        tokens = [*state.left, *state.pending] if is_end else [*state.left, *state.pending, token]
        text = self._decode(tokens)[len(self._decode(state.left)) :]
        whole = text.rstrip(_INCOMPLETE)
        waited = state.waited + 1 if len(whole) <= state.given else 1
        if whole == text or waited == _LONGEST_CHARACTER or is_end or room < 1:
            return text[state.given :], _State(tokens[-_LEFT_CONTEXT:], [], room=room)
        pending = [*state.pending, token]
        return whole[state.given :], _State(state.left, pending, max(state.given, len(whole)), waited, room)
