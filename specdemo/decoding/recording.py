"""What a round looked like, put into events. Runs while the lane's clock stands still."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdemo.decoding.request import Transcript
from specdemo.decoding.tree import walk, walk_typically
from specdemo.drafters.base import Proposal
from specdemo.events import Candidate, Outcome, Token, TopLists
from specdemo.models.tree import Tree
from specdemo.sampling import verify

TOP = 8
"""Entries of a recorded top list."""


@dataclass(frozen=True)
class Pass:
    """One pass of the target over n drafts and what was decided, on the host.

    start: position of the first draft in the text. drafts: their ids; tree: their shape, None for a chain. path:
    indices of the accepted ones; token: the target's own token behind them, p_token its probability. Of the drafts:
    p, q (both None where they were no distribution), u, tv = 1 - sum_x min(p(x), q(x)) and, where they were tested,
    accept (None elsewhere); thresholds as in a Walk. logits, probs [n + 1, vocab], source [vocab] and the
    proposal's q: still on the device, for top lists alone.
    """

    start: int
    drafts: list[int]
    tree: Tree | None
    path: list[int]
    token: int
    p_token: float
    p: list[float | None]
    q: list[float | None]
    accept: list[float | None]
    tv: list[float]
    u: list[float] | list[None]
    logits: Tensor
    probs: Tensor
    source: Tensor
    proposal: Proposal
    thresholds: list[float | None] | None = None

    def row(self, draft: int) -> int:
        """The row of logits and probs that predicts a draft."""
        return draft if self.tree is None else self.tree.parents[draft] + 1

    def depth(self, draft: int) -> int:
        """How far a draft stands from the text."""
        return draft if self.tree is None else self.tree.depth(draft)

    @property
    def gained(self) -> list[int]:
        """The accepted drafts and the target's own token, if there is one."""
        return [*(self.drafts[i] for i in self.path), *([] if self.failed else [self.token])]

    @property
    def tested(self) -> list[bool]:
        return [chance is not None for chance in self.accept]

    @property
    def failed(self) -> bool:
        """Whether the target's row behind the path is no distribution, so that `token` means nothing."""
        return math.isnan(self.p_token)

    @property
    def draft_broke(self) -> bool:
        """Whether a draft was drawn from what is no distribution. The text is exact: that draft was not accepted."""
        return None in self.q

    @property
    def last_row(self) -> int:
        """The row that predicts the target's own token."""
        return self.path[-1] + 1 if self.path else 0


def decide(start: int, proposal: Proposal, logits: Tensor, probs: Tensor, u: Tensor, typical: bool = False) -> Pass:
    """Accept or reject a draft. A chain is decided where it lies and brought to the host in one transfer, the only
    time a round waits for the device; a tree is walked from here.

    logits, probs: [n + 1, vocab]. u: uniforms [n + 1], one for each draft and one for the target's own token. typical:
    decide by Medusa's rule instead, which is not exact.
    """
    n = len(proposal)
    if typical and n:
        chain = Tree(tuple(range(-1, n - 1)))
        return _walked(start, replace(proposal, tree=proposal.tree or chain), logits, probs, u, typical)
    if proposal.tree is not None:
        return _walked(start, proposal, logits, probs, u, typical)
    v = verify(probs, proposal.q, proposal.ids, u[:n], u[n])
    single = torch.stack([v.accepted.to(u.dtype), v.token.to(u.dtype), v.p_token.to(u.dtype)])
    several = [x.to(u.dtype) for x in (proposal.ids, v.p, v.q, v.accept, v.tv, u[:n])]
    accepted, token, p_token, *rest = torch.cat([single, *several]).tolist()
    ids, p, q, accept, tv, tests = (rest[i * n : (i + 1) * n] for i in range(6))
    accepted = int(accepted)
    p, q = _known(p), _known(q)
    tested = [value if i <= accepted else None for i, value in enumerate(_known(accept))]
    drafts, path = [int(i) for i in ids], list(range(accepted))
    return Pass(
        start, drafts, None, path, int(token), p_token, p, q, tested, tv, tests, logits, probs, v.source, proposal
    )


def _known(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _walked(start: int, proposal: Proposal, logits: Tensor, probs: Tensor, u: Tensor, typical: bool) -> Pass:
    tree, drafts = proposal.tree, proposal.ids.tolist()
    if typical:
        found = walk_typically(probs, drafts, tree, u[-1])
    else:
        found = walk(probs, proposal.q, drafts, tree, u[:-1], u[-1])
    rows = torch.tensor([parent + 1 for parent in tree.parents], device=probs.device)
    p = _known(probs[rows, proposal.ids].tolist())
    if proposal.q is None:
        q, tv = [1.0] * len(p), [1 - (share or 0.0) for share in p]
    else:
        q = _known(proposal.q.gather(-1, proposal.ids[:, None])[:, 0].tolist())
        tv = (1 - torch.minimum(probs[rows], proposal.q).sum(-1)).tolist()
    accept = [None if None in (p[i], q[i]) else found.accept.get(i) for i in range(len(drafts))]
    p_token = float(probs[found.path[-1] + 1 if found.path else 0, found.token])
    tests = [None] * len(drafts) if typical else u[:-1].tolist()
    return Pass(
        start,
        drafts,
        tree,
        found.path,
        found.token,
        p_token,
        p,
        q,
        accept,
        tv,
        tests,
        logits,
        probs,
        found.source,
        proposal,
        found.thresholds and _known(found.thresholds),
    )


def drafted_tokens(done: Pass, kept: int, transcript: Transcript) -> list[Token]:
    """Every draft with what became of it; the first `kept` of the path entered the text, fewer than were accepted where
    an end of text lies among them. To be called before the transcript's text moves on."""
    texts = pieces(done.drafts, done.tree, transcript)
    return [_drafted(done, kept, transcript, i, piece) for i, piece in enumerate(texts)]


def pieces(drafts: list[int], tree: Tree | None, transcript: Transcript) -> list[str]:
    """The text of each draft where it stands: in a tree, behind its own ancestors."""
    if tree is None:
        return transcript.text.peek(drafts)
    paths = [tree.path(i) for i in range(len(drafts))]
    return [transcript.text.peek([drafts[i] for i in path])[-1] for path in paths]


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
    token, position = done.drafts[i], done.start + done.depth(i)
    chance = done.proposal.chances[i] if done.proposal.chances else None
    if done.accept[i] is None:
        # Where the walk came by, p says what a younger sibling would have had.
        p = done.p[i] if done.tree is not None and done.row(i) - 1 in (-1, *done.path) else None
        return Token(id=token, text=piece, outcome="discarded", position=position, p=p, q=done.q[i], chance=chance)
    rejected = i not in done.path
    # What was drawn at a rejection stands with the last draft that was refused there.
    residual = done.source if rejected and done.row(i) == done.last_row else None
    return Token(
        id=token,
        text=piece,
        outcome="rejected" if rejected else "accepted" if i in done.path[:kept] else "cut",
        position=position,
        p=done.p[i],
        q=done.q[i],
        accept=done.accept[i],
        u=done.u[i],
        tv=done.tv[i],
        chance=chance,
        threshold=done.thresholds[i] if done.thresholds else None,
        top=top_lists(
            transcript,
            done.logits[done.row(i)],
            done.probs[done.row(i)],
            None if done.proposal.q is None else done.proposal.q[i],
            residual,
        ),
    )
