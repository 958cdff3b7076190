"""Plain autoregressive decoding: one pass of the target, one token. What speculation has to beat."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from specdemo.decoding.clock import Clock
from specdemo.decoding.recording import Position, target_token, top_lists
from specdemo.decoding.request import Request, Transcript
from specdemo.events import Event, Round, Start
from specdemo.models.runner import LanguageModel
from specdemo.sampling import Uniforms, draw, probabilities


def baseline(target: LanguageModel, request: Request, capacity: int) -> Iterator[Event]:
    """Decode one token a pass; yields Start, Prefill..., a Round for every token, and End.

    capacity: tokens of prompt and answer together that the cache must hold (the context limit at most). The
    generator may be closed at any event; everything it holds is its own.
    """
    runner = target.runner(capacity, passes=[1])
    transcript = Transcript(request, runner)
    clock, uniforms = Clock(target.device), Uniforms(request.seed, "target", target.device)

    yield Start(prompt_tokens=len(request.prompt))
    yield from transcript.prefill(clock)
    clock.phases()

    while (reason := transcript.ended()) is None:
        context, start = transcript.context, transcript.tokens

        clock.start()
        logits = runner.forward(context[-1:])
        clock.lap()
        p = probabilities(logits, request.sampler)
        drawn = draw(p, uniforms.draw(1))
        token, p_token = torch.cat((drawn, p[0, drawn])).tolist()
        if math.isnan(p_token):
            clock.stop()
            yield transcript.failed(target.info.name, clock)
            return
        context.append(int(token))
        clock.stop()

        (top,) = top_lists(transcript, [Position(logits[0], p[0])])
        verify_seconds, overhead_seconds = clock.phases()
        yield Round(
            round=start,
            start=start,
            drafted=[],
            final=target_token(transcript, int(token), "plain", p_token, top),
            draft_seconds=0.0,
            verify_seconds=verify_seconds,
            overhead_seconds=overhead_seconds,
            clock=clock.seconds,
        )

    yield transcript.end(reason, clock)
