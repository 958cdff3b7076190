"""What a round looked like, put into events. Runs while the lane's clock stands still."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.decoding.request import Transcript
from specdemo.drafters.base import Proposal
from specdemo.events import Candidate, Outcome, Token, TopLists
from specdemo.sampling import Verdict

TOP = 8
"""Entries of a recorded top list."""


@dataclass(frozen=True)
class Pass:
    """One pass of the target over n drafts and what was decided, on the host.

    start: position of the first draft in the text. drafts: their ids. accepted, token, p_token, p, q, accept, tv: see
    `Verdict`. u: the uniforms of the tests. logits, probs: what the target said, [n + 1, vocab], and full_q, source
    beside them: still on the device, for top lists alone.
    """

    start: int
    drafts: list[int]
    accepted: int
    token: int
    p_token: float
    p: list[float]
    q: list[float]
    accept: list[float]
    tv: list[float]
    u: list[float]
    logits: Tensor
    probs: Tensor
    full_q: Tensor
    source: Tensor


def fetch(start: int, proposal: Proposal, logits: Tensor, probs: Tensor, u: Tensor, verdict: Verdict) -> Pass:
    """Bring a round's decisions to the host, in one transfer: the only time a round waits for the device."""
    n, v = len(proposal), verdict
    single = torch.stack([v.accepted.to(u.dtype), v.token.to(u.dtype), v.p_token.to(u.dtype)])
    several = [x.to(u.dtype) for x in (proposal.ids, v.p, v.q, v.accept, v.tv, u[:n])]
    accepted, token, p_token, *rest = torch.cat([single, *several]).tolist()
    ids, p, q, accept, tv, tests = (rest[i * n : (i + 1) * n] for i in range(6))
    return Pass(
        start,
        [int(i) for i in ids],
        int(accepted),
        int(token),
        p_token,
        p,
        q,
        accept,
        tv,
        tests,
        logits,
        probs,
        proposal.q,
        v.source,
    )


def drafted_tokens(done: Pass, kept: int, transcript: Transcript) -> list[Token]:
    """Every draft with what became of it; the first `kept` entered the text, fewer than were accepted where an end of
    text lies among them. To be called before the transcript's text moves on."""
    pieces = transcript.text.peek(done.drafts)
    return [_drafted(done, kept, transcript, i, piece) for i, piece in enumerate(pieces)]


def target_token(transcript: Transcript, token: int, outcome: Outcome, p: float, top: TopLists | None) -> Token:
    """The token that the target itself drew, with its probability; it is the last of the transcript's context."""
    return Token(
        id=token,
        text=transcript.text.push(token),
        outcome=outcome,
        position=transcript.tokens - 1,
        p=p,
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


def _drafted(done: Pass, kept: int, transcript: Transcript, i: int, piece: str) -> Token:
    token, position = done.drafts[i], done.start + i
    if i > done.accepted:
        return Token(id=token, text=piece, outcome="discarded", position=position, q=done.q[i])
    rejected = i == done.accepted
    residual = done.source if rejected else None
    return Token(
        id=token,
        text=piece,
        outcome="rejected" if rejected else "accepted" if i < kept else "cut",
        position=position,
        p=done.p[i],
        q=done.q[i],
        accept=done.accept[i],
        u=done.u[i],
        tv=done.tv[i],
        top=top_lists(transcript, done.logits[i], done.probs[i], done.full_q[i], residual),
    )
