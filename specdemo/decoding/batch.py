"""Speculative sampling of several texts at once, as serving engines do it (without their scheduling).

The round is that of speculative.py. What is new is that rows part: each accepts its own number of drafts, so its cache
and its text advance by its own length, and a pass places its tokens where each row stands. A row that has ended stays
in the batch and is computed for nothing, as in a batch nobody refills.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdemo.decoding.request import no_distribution
from specdemo.drafters.draft_model import spread, target_ids
from specdemo.errors import UserError
from specdemo.models.device import enter, to_device
from specdemo.models.runner import LanguageModel, Runner
from specdemo.sampling import Uniforms, draw, probabilities, verify
from specdemo.settings import SamplerSettings


@dataclass(frozen=True)
class BatchRequest:
    """Prompts [batch] of token ids and how to continue each of them."""

    prompts: list[list[int]]
    sampler: SamplerSettings
    max_tokens: int
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0


@dataclass
class BatchRun:
    """What came of it. texts: generated ids of each row. seconds: decoding, prefill left out. passes: of the target."""

    texts: list[list[int]]
    seconds: float = 0.0
    passes: int = 0
    tested: int = 0
    accepted: int = 0
    draft_broke: bool = False
    """Whether the draft computed what is no distribution: the rest was decoded plainly."""
    open_rows: list[int] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return sum(map(len, self.texts)) / self.seconds


def decode_batch(
    target: LanguageModel, request: BatchRequest, draft: LanguageModel | None = None, gamma: int = 0
) -> BatchRun:
    """Continue every prompt, by drafts of `gamma` tokens where there is a draft model.

    Raises UserError for prompts that do not fit, and where the target's logits are no distribution.
    """
    capacity = max(map(len, request.prompts)) + request.max_tokens + gamma + 1
    if capacity > target.max_length or (draft and capacity > draft.max_length):
        raise UserError(f"A batch needs room for {capacity:,} tokens a row, more than these models can read.")
    enter(target.device)
    runner = _prefilled(target, request.prompts, capacity, [gamma + 1 if draft else 1])
    drafter = _prefilled(draft, request.prompts, capacity, [1, 2]) if draft else None
    uniforms = Uniforms(request.seed, "target", target.device)
    draft_uniforms = Uniforms(request.seed, "draft", target.device)
    contexts = [list(prompt) for prompt in request.prompts]
    run = BatchRun([[] for _ in contexts], open_rows=list(range(len(contexts))))
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)  # the prompts are still being read
    start = time.perf_counter()
    while run.open_rows:
        batch = len(contexts)
        if drafter:
            drafts, q = _draft(draft, drafter, contexts, gamma, target.vocab_size, request.sampler, draft_uniforms)
        else:
            drafts = torch.zeros(batch, 0, dtype=torch.long, device=target.device)
            q = torch.zeros(batch, 0, target.vocab_size, device=target.device)
        last = to_device([context[-1:] for context in contexts], target.device)
        p = probabilities(runner.forward(torch.cat((last, drafts), dim=1)), request.sampler)
        u = uniforms.draw(batch * (drafts.shape[1] + 1)).view(batch, -1)
        verdict = verify(p, q, drafts, u[:, :-1], u[:, -1])
        run.passes += 1
        nothing, unsound = verdict.p_token.isnan(), verdict.q.isnan().any(-1)
        told = [x.long()[:, None] for x in (verdict.accepted, verdict.token, nothing, unsound)]
        decided = torch.cat((*told, drafts), dim=1).tolist()
        for row in list(run.open_rows):
            accepted, token, failed, broke, *drafted = decided[row]
            if failed:
                raise UserError(no_distribution(target.info.name, len(run.texts[row]) + accepted))
            if broke:
                run.draft_broke, drafter = True, None
            run.tested += min(accepted + 1, len(drafted))
            run.accepted += accepted
            _emit(run, request, contexts, row, [*drafted[:accepted], token])
        runner.rollback([len(context) - 1 for context in contexts])
    run.seconds = time.perf_counter() - start
    return run


def _emit(run: BatchRun, request: BatchRequest, contexts: list[list[int]], row: int, tokens: list[int]) -> None:
    """Append a row's new tokens, up to its end."""
    for token in tokens:
        run.texts[row].append(token)
        contexts[row].append(token)
        if token in request.eos_ids or len(run.texts[row]) == request.max_tokens:
            run.open_rows.remove(row)
            return


def _prefilled(model: LanguageModel, prompts: list[list[int]], capacity: int, passes: list[int]) -> Runner:
    """A runner that has read every prompt but its last token. Padding on the right is computed and forgotten. passes:
    over how many tokens its passes will be."""
    runner = model.runner(capacity, batch=len(prompts), passes=passes)
    longest = max(map(len, prompts))
    if longest > 1:
        padded = [[*prompt[:-1], *[0] * (longest - len(prompt))] for prompt in prompts]
        runner.prefill(to_device(padded, model.device))
        runner.rollback([len(prompt) - 1 for prompt in prompts])
    return runner


def _draft(
    model: LanguageModel,
    runner: Runner,
    contexts: list[list[int]],
    gamma: int,
    vocab_size: int,
    sampler: SamplerSettings,
    uniforms: Uniforms,
) -> tuple[Tensor, Tensor]:
    """Drafts [batch, gamma] of the target's ids, and q [batch, gamma, vocab]."""
    # A fully accepted row lacks its last draft, the others lack nothing but the last token: all of them take their
    # last two again, so that rows stay in step (a prompt of one token has no two, and its row nothing to catch up).
    ready = min(2, min(map(len, contexts)))
    runner.rollback([len(context) - ready for context in contexts])
    new = to_device([context[-ready:] for context in contexts], model.device)
    u = uniforms.draw(gamma * len(contexts)).view(gamma, -1)
    ids, rows = [], []
    for step in range(gamma):
        q = probabilities(runner.forward(new)[:, -1], sampler)
        new = target_ids(model, draw(q, u[step]))[:, None]
        ids.append(new)
        rows.append(q)
    return torch.cat(ids, dim=1), spread(model, torch.stack(rows, dim=1), vocab_size)
