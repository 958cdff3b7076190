"""What a round looked like, put into events. Runs while the lane's clock stands still."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.decoding.request import Transcript
from specdemo.events import Candidate, Outcome, Token, TopLists
from specdemo.sampling import Verdict

TOP = 8
"""Entries of a recorded top list."""


@dataclass(frozen=True)
class Pass:
    """One pass of the target over n drafts and what was decided.

    start: position of the first draft in the text. drafts: their ids. logits, p: [n + 1, vocab]. q: [n, vocab].
    u: the uniforms of the tests, [n]. kept: drafts that entered the text, fewer than were accepted where an end of
    text lies among them.
    """

    start: int
    drafts: list[int]
    logits: Tensor
    p: Tensor
    q: Tensor
    u: Tensor
    verdict: Verdict
    kept: int


def drafted_tokens(done: Pass, transcript: Transcript) -> list[Token]:
    """Every draft with what became of it. To be called before the transcript's text moves on."""
    pieces = transcript.text.peek(done.drafts)
    return [_drafted(done, transcript, i, piece) for i, piece in enumerate(pieces)]


def target_token(transcript: Transcript, token: int, outcome: Outcome, p: Tensor, top: TopLists | None) -> Token:
    """The token that the target itself drew from p [vocab]; it is the last of the transcript's context."""
    return Token(
        id=token,
        text=transcript.text.push(token),
        outcome=outcome,
        position=transcript.tokens - 1,
        p=float(p[token]),
        top=top,
    )


def top_lists(
    transcript: Transcript, logits: Tensor, p: Tensor, q: Tensor | None = None, residual: Tensor | None = None
) -> TopLists | None:
    """The most probable tokens of one position, all arguments [vocab]; None unless recording is asked for."""
    if not transcript.request.record:
        return None

    def top(probs: Tensor | None) -> list[Candidate]:
        if probs is None:
            return []
        values, ids = probs.topk(min(TOP, len(probs)))
        return [
            Candidate(id=token, text=transcript.request.decode([token]), prob=prob)
            for token, prob in zip(ids.tolist(), values.tolist(), strict=True)
            if prob > 0
        ]

    return TopLists(p=top(p), q=top(q), residual=top(residual), plain=top(torch.softmax(logits, -1)))


def _drafted(done: Pass, transcript: Transcript, i: int, piece: str) -> Token:
    verdict, token, position = done.verdict, done.drafts[i], done.start + i
    if i > verdict.accepted:
        return Token(id=token, text=piece, outcome="discarded", position=position, q=float(done.q[i, token]))
    rejected = i == verdict.accepted
    return Token(
        id=token,
        text=piece,
        outcome="rejected" if rejected else "accepted" if i < done.kept else "cut",
        position=position,
        p=float(verdict.p[i]),
        q=float(verdict.q[i]),
        accept=float(verdict.accept[i]),
        u=float(done.u[i]),
        tv=float(verdict.tv[i]),
        top=top_lists(transcript, done.logits[i], done.p[i], done.q[i], verdict.source if rejected else None),
    )
