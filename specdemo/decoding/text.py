"""Token ids to text, one token at a time, exactly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_INCOMPLETE = "\ufffd"  # how a decoder shows bytes that are not (yet) a character
_LONGEST_CHARACTER = 4  # bytes, hence tokens, that one character can be split over
_LEFT_CONTEXT = 4  # tokens decoded along on the left: some tokenizers drop the space of a first token


class TextStream:
    """Gives each token the piece of text that it completes; the pieces joined are the text.

    A tokenizer may split one character (an emoji, most Japanese) over several tokens: all but the last of them get
    an empty piece. Tokens in `silent` (those that end the text) have no text of their own.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int] = (), silent: Collection[int] = ()
    ) -> None:
        self._decode, self._silent = decode, silent
        self._left = list(prompt[-_LEFT_CONTEXT:])
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Append a token; the text that it completes."""
        piece, self._left, self._pending = self._step(self._left, self._pending, token)
        return piece

    def peek(self, tokens: Sequence[int]) -> list[str]:
        """The pieces that these tokens would get, without appending them."""
        left, pending, pieces = self._left, self._pending, []
        for token in tokens:
            piece, left, pending = self._step(left, pending, token)
            pieces.append(piece)
        return pieces

    def _step(self, left: list[int], pending: list[int], token: int) -> tuple[str, list[int], list[int]]:
        if token in self._silent:
            return "", left, pending
        pending = [*pending, token]
        before = self._decode(left)
        piece = self._decode([*left, *pending])[len(before) :]
        if piece.endswith(_INCOMPLETE) and len(pending) < _LONGEST_CHARACTER:
            return "", left, pending
        return piece, [*left, *pending][-_LEFT_CONTEXT:], []
