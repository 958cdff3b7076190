"""What a round looked like, put into events. Runs while the lane's clock stands still."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdemo.decoding.request import Transcript
from specdemo.decoding.tree import leftover, longest_walk, odds, typical_odds, walk
from specdemo.drafters.base import Proposal
from specdemo.events import Candidate, Outcome, Token, TopLists
from specdemo.models.device import to_device
from specdemo.models.tree import Tree
from specdemo.sampling import draw, verify

TOP = 8
"""Entries of a recorded top list."""


@dataclass(frozen=True)
class Pass:
    """One pass of the target over n drafts and what was decided, on the host.

    start: position of the first draft in the text. drafts: their ids; tree: their shape, None for a chain. path:
    indices of the accepted ones; token: the target's own token behind them, p_token its probability. Of the drafts:
    p, q (both None where they were no distribution), u, tv = 1 - sum_x min(p(x), q(x)) and, where they were tested,
    accept (None elsewhere); thresholds as in `tree.Odds`. logits, probs [n + 1, vocab], source [vocab] and the
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
    def refused(self) -> bool:
        """Whether a draft was refused where the target's own token stands."""
        return any(tested and self.row(i) == self.last_row for i, tested in enumerate(self.tested))

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
    time a round waits for the device; a tree takes two, see `tree`.

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
    tree, q, n = proposal.tree, proposal.q, len(proposal)
    found = typical_odds(probs, proposal.ids, tree) if typical else odds(probs, q, proposal.ids, tree)
    told = [proposal.ids, found.p, found.accept, u[:n]]
    if q is not None:
        rows = [parent + 1 for parent in tree.parents]
        overlap = torch.minimum(probs[to_device(rows, probs.device)], q).sum(-1)
        told += [q.gather(-1, proposal.ids[:, None])[:, 0], 1 - overlap]
    if typical:
        told.append(found.thresholds)
    ids, p, accept, tests, *more = torch.stack([x.to(u.dtype) for x in told]).tolist()
    path, tested = longest_walk(tree, accept) if typical else walk(tree, accept, tests)
    source = leftover(probs, found, proposal.ids, tree, path)
    drawn = draw(source, u[n])
    p_drawn = probs[path[-1] + 1 if path else 0].index_select(0, drawn[None])
    token, p_token = torch.cat((drawn[None].to(u.dtype), p_drawn.to(u.dtype))).tolist()

    p = _known(p)
    if q is None:
        q_of_drafts, tv = [1.0] * n, [1 - (share or 0.0) for share in p]
    else:
        q_of_drafts, tv = _known(more[0]), more[1]
    return Pass(
        start,
        [int(i) for i in ids],
        tree,
        path,
        int(token),
        p_token,
        p,
        q_of_drafts,
        [accept[i] if i in tested and None not in (p[i], q_of_drafts[i]) else None for i in range(n)],
        tv,
        [None] * n if typical else tests,
        logits,
        probs,
        source,
        proposal,
        _known(more[-1]) if typical else None,
    )


def drafted_tokens(done: Pass, kept: int, transcript: Transcript, tops: Mapping[int, TopLists | None]) -> list[Token]:
    """Every draft with what became of it and its lists; the first `kept` of the path entered the text, fewer than were
    accepted where an end of text lies among them. To be called before the transcript's text moves on."""
    texts = pieces(done.drafts, done.tree, transcript)
    return [_drafted(done, kept, i, piece, tops.get(i)) for i, piece in enumerate(texts)]


FINAL = -1
"""What stands for the target's own token among a pass's drafts."""


def all_top_lists(done: Pass, transcript: Transcript) -> dict[int, TopLists | None]:
    """The lists of every draft that was tested, and of the target's own token, which has none where a draft was refused
    there: those of that position stand with the draft."""
    q, tested = done.proposal.q, [i for i, asked in enumerate(done.tested) if asked]
    places = {}
    for i in tested:
        # What was drawn at a rejection stands with the last draft that was refused there.
        left = done.source if i not in done.path and done.row(i) == done.last_row else None
        places[i] = Position(done.logits[done.row(i)], done.probs[done.row(i)], None if q is None else q[i], left)
    if not done.refused:
        places[FINAL] = Position(done.logits[done.last_row], done.probs[done.last_row])
    return dict(zip(places, top_lists(transcript, list(places.values())), strict=True))


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


@dataclass(frozen=True)
class Position:
    """What the tokens of one position were drawn from and judged by, all [vocab], on the device."""

    logits: Tensor
    p: Tensor
    q: Tensor | None = None
    residual: Tensor | None = None

    def rows(self) -> dict[str, Tensor]:
        """Probabilities, by the names that TopLists has for them."""
        found = {"p": self.p, "q": self.q, "residual": self.residual, "plain": torch.softmax(self.logits, -1)}
        return {name: row for name, row in found.items() if row is not None}


def top_lists(transcript: Transcript, positions: Sequence[Position]) -> list[TopLists | None]:
    """The most probable tokens of each position, brought to the host in one transfer; None unless recording is asked
    for."""
    if not transcript.request.record or not positions:
        return [None] * len(positions)
    rows = [position.rows() for position in positions]
    stacked = torch.stack([row for named in rows for row in named.values()])
    values, ids = stacked.topk(min(TOP, stacked.shape[-1]))
    listed = iter(torch.stack((values, ids.to(values.dtype)), dim=1).tolist())  # fp32 holds ids up to 2^24
    return [
        TopLists(**{"q": [], "residual": []} | {name: _listed(transcript, *next(listed)) for name in named})
        for named in rows
    ]


def _listed(transcript: Transcript, probs: list[float], ids: list[float]) -> list[Candidate]:
    known = [(int(id), prob) for id, prob in zip(ids, probs, strict=True) if prob > 0]
    return [Candidate(id=id, text=transcript.request.decode([id]), prob=prob) for id, prob in known]


def _drafted(done: Pass, kept: int, i: int, piece: str, top: TopLists | None) -> Token:
    token, position = done.drafts[i], done.start + done.depth(i)
    chance = done.proposal.chances[i] if done.proposal.chances else None
    if done.accept[i] is None:
        # Where the walk came by, p says what a younger sibling would have had.
        p = done.p[i] if done.tree is not None and done.row(i) - 1 in (-1, *done.path) else None
        return Token(id=token, text=piece, outcome="discarded", position=position, p=p, q=done.q[i], chance=chance)
    rejected = i not in done.path
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
        top=top,
    )
