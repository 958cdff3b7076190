"""Speculative sampling (Chen et al. 2023, 2302.01318, algorithm 2; Leviathan et al. 2023, 2211.17192, algorithm 1).

A round: the drafter proposes gamma tokens, the target scores all of them in one pass, the leading ones that pass the
test stay, and the target adds one token of its own. The text is distributed exactly as if the target had written it
alone, whatever the drafter proposes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specdemo.decoding.clock import Clock
from specdemo.decoding.gamma import Policy
from specdemo.decoding.recording import FINAL, Pass, all_top_lists, decide, drafted_tokens, pieces, target_token
from specdemo.decoding.request import Request, Transcript
from specdemo.drafters.base import Drafter, Proposal
from specdemo.events import Draft, Event, NoDraft, Outcome, Round, Start, Token, TopLists
from specdemo.models.device import to_device
from specdemo.models.runner import LanguageModel
from specdemo.sampling import Uniforms, probabilities
from specdemo.settings import MAX_GAMMA


def speculative(
    target: LanguageModel, drafter: Drafter, request: Request, policy: Policy, capacity: int, name: str = "drafter"
) -> Iterator[Event]:
    """Decode with drafts as long as `policy` asks for; yields Start, Prefill..., then a Round for every pass, and End.

    With recording on, a Draft event comes before each round that has one. capacity: tokens of prompt and answer
    together that caches must hold (the context limit at most). The generator may be closed at any event; everything
    it holds is its own.
    """
    runner = target.runner(capacity, passes=range(1, MAX_GAMMA + 2), taps=drafter.taps)
    transcript = Transcript(request, runner)
    clock, uniforms = Clock(target.device), Uniforms(request.seed, "target", target.device)

    yield Start(
        prompt_tokens=len(request.prompt), drafter=name, gamma=policy.gamma, draft_context=drafter.longest_context
    )
    yield from transcript.prefill(clock)
    clock.start()
    drafter.prefill(request.prompt, runner, request.stop)
    clock.stop()
    yield transcript.prefilled(clock)
    clock.phases()

    broken = False  # a drafter that computes what is no distribution is not asked again
    while (reason := transcript.ended()) is None:
        context = transcript.context
        start, n = transcript.tokens, len(context)

        clock.start()
        proposal = _propose(None if broken else drafter, policy, transcript, target)
        clock.stop()
        if request.record and len(proposal):
            texts, parents = pieces(proposal.on_host(), proposal.tree, transcript), _parents(proposal)
            yield Draft(round=transcript.rounds, start=start, texts=texts, parents=parents, clock=clock.seconds)
        if request.stop():
            continue

        # One pass scores everything: row i of the logits stands behind the context and i drafts, so it is the
        # distribution that draft i (counted from 0) must look drawn from, and the last row gives the bonus. (In a
        # tree row i + 1 stands behind node i, and a draft is judged by its parent's row.)
        clock.start()
        last = to_device(context[-1:], target.device)
        tree = proposal.tree and proposal.tree.behind(1)
        logits = runner.forward(torch.cat((last, proposal.ids)), tree)
        clock.lap()
        p = probabilities(logits, request.sampler)
        done = decide(start, proposal, logits, p, uniforms.draw(len(proposal) + 1), request.typical)
        runner.keep(n, [n + draft for draft in done.path])
        if not broken:
            drafter.rollback(n + len(done.path))
            policy.learn(proposal.steps, len(proposal), len(done.path))
            broken = done.draft_broke or proposal.why == "draft_broken"
        emitted = _until_end(done.gained, request.eos_ids)
        context.extend(emitted)
        clock.stop()

        if emitted:
            yield _told(done, proposal, emitted, transcript, clock)
            transcript.rounds += 1
        if done.failed and transcript.ended() is None:
            yield transcript.failed(target.info.name, clock)
            return

    yield transcript.end(reason, clock)


def _propose(drafter: Drafter | None, policy: Policy, transcript: Transcript, target: LanguageModel) -> Proposal:
    """A round's draft, or none and why. It emits one token more than it drafts: never draft what could not be emitted.

    drafter: None where it has been switched off.
    """
    context, room = transcript.context, transcript.room - 1
    if drafter is None or room < 1:
        return Proposal.none(target.vocab_size, target.device, "no_room" if drafter else "draft_broken")
    gamma = policy.choose()
    if gamma < 1:
        return Proposal.none(target.vocab_size, target.device, "plain_faster")
    proposal = drafter.propose(context, min(gamma, room), transcript.request.stop)
    return proposal.first(transcript.runner.capacity - len(context))  # a tree has more nodes than it is deep


def _told(done: Pass, proposal: Proposal, emitted: list[int], transcript: Transcript, clock: Clock) -> Round:
    """The round as an event; the transcript's text moves on by what was emitted."""
    kept = min(len(emitted), len(done.path))
    tops = all_top_lists(done, transcript)
    drafted = drafted_tokens(done, kept, transcript, tops)
    for token in emitted[:kept]:
        transcript.text.push(token)
    draft_seconds, verify_seconds, overhead_seconds = clock.phases()
    return Round(
        round=transcript.rounds,
        start=done.start,
        drafted=drafted,
        final=_final(done, transcript, tops.get(FINAL)) if len(emitted) > kept else None,
        draft_steps=proposal.steps,
        parents=_parents(proposal),
        no_draft=_no_draft(done, proposal),
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        overhead_seconds=overhead_seconds,
        clock=clock.seconds,
    )


def _parents(proposal: Proposal) -> list[int] | None:
    return None if proposal.tree is None else list(proposal.tree.parents)


def _no_draft(done: Pass, proposal: Proposal) -> NoDraft | None:
    return "draft_broken" if done.draft_broke and not any(done.tested) else proposal.why


def _final(done: Pass, transcript: Transcript, top: TopLists | None) -> Token:
    """The token behind the accepted drafts, by the name of what it was drawn from."""
    outcome: Outcome = "resampled" if done.refused else "bonus" if done.path else "plain"
    return target_token(transcript, done.token, outcome, done.p_token, top)


def _until_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and including the first that ends the text."""
    for i, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: i + 1]
    return tokens
