"""What decoding asks of a model, tried when it is loaded: a fault is found here, in a sentence, and not in a run.

A model must say the same of a text however the text came into its cache: token by token, in pieces, behind drafts that
were taken back, as a tree. Encoders, models whose state cannot be rolled back and weights that are not numbers fail.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdemo.errors import UserError
from specdemo.models.device import is_lost, is_out_of_memory
from specdemo.models.runner import LanguageModel, Runner
from specdemo.models.tree import ROOT, Tree

_PROMPT, _ANSWER = 24, 8  # tokens
_ROWS = 4096  # of the embedding at a time
_NOISE = {"fp32": 0.01, "bf16": 0.12, "fp16": 0.05}
"""By how much passes of another shape may differ, as a share of the logits' spread. In the default target rounding
makes 3e-6 of it in fp32, 0.03 in bf16 and 0.004 in fp16, a single token that is missing from the cache 0.22."""


def probe(model: LanguageModel) -> None:
    """Raises UserError for a model that cannot be decoded with, naming it."""
    name = model.info.name
    try:
        _require_numbers(model)
        decoder = _Plain(model)
        same = all(agree(model, ours, decoder.logits[at]) for ours, at in decoder.speculated())
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError) as error:
        if is_out_of_memory(error) or is_lost(error):
            raise  # no fault of the model
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"{name} cannot be decoded with: a short trial ended with {type(error).__name__}: {first}. Its files may "
            "not belong together; else choose a model that transformers generates text with."
        ) from error
    if not same:
        raise UserError(
            f"{name} says something else of the same text when drafts before it were rolled back, so nothing could be "
            "verified with it: it is no causal language model, or keeps a state beside keys and values. Choose another."
        )


def agree(model: LanguageModel, ours: Tensor, theirs: Tensor) -> bool:
    """Whether two passes over the same tokens gave the same logits [k, vocab], but for rounding."""
    spread = (theirs - theirs.mean(-1, keepdim=True)).norm()
    return bool((ours - theirs).norm() <= _NOISE[model.info.dtype] * spread)


def agree_on_trees(model: LanguageModel) -> bool:
    """Whether the nodes of a tree get the logits that they get as plain text, and its path stays in the cache."""
    plain = _Plain(model)
    if len(plain.answer) < 5:
        return False
    runner, n = plain.prompted(), len(plain.prompt)
    wrong = plain.wrong
    # The prompt's last token; behind it a right child and a wrong one, and the right one's own two children.
    tree = Tree((ROOT, 0, 0, 2, 2))
    logits = runner.forward([plain.prompt[-1], wrong, plain.answer[0], wrong, plain.answer[1]], tree)
    runner.keep(n - 1, [n - 1, n + 1, n + 3])
    after = runner.forward(plain.answer[2:4])
    return agree(model, torch.cat((logits[[0, 2, 4]], after)), plain.logits[:5])


def _require_numbers(model: LanguageModel) -> None:
    """Every token of the vocabulary has an embedding of finite numbers."""
    ids = torch.arange(model.vocab_size) if model.vocab_ids is None else model.vocab_ids
    with torch.inference_mode():
        whole = all(model.embed(some.to(model.device)).isfinite().all() for some in ids.split(_ROWS))
    if not whole:
        raise UserError(_not_numbers(model))


def _not_numbers(model: LanguageModel) -> str:
    return (
        f"{model.info.name} computes with {model.info.dtype} weights that are not finite numbers (NaN or infinite). "
        "They are damaged, or too large for this precision: fetch them again, or give --dtype fp32."
    )


class _Plain:
    """A few tokens of greedy text, decoded one by one: `logits` [answer, vocab], of which row i chose answer[i]."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        known = torch.arange(model.vocab_size) if model.vocab_ids is None else model.vocab_ids.cpu()
        room = min(_PROMPT + _ANSWER, model.max_length)
        n = max(1, room - _ANSWER)
        # Spread over the vocabulary; 7 is as good a step as any.
        self.prompt = [int(known[7 * i % len(known)]) for i in range(n)]
        self.answer: list[int] = []
        runner, rows = self.prompted(), []
        while len(self.prompt) + len(self.answer) < room:
            rows.append(runner.forward([(self.prompt + self.answer)[-1]])[0].clone())
            if not bool(rows[-1].max().isfinite()):  # of a row with a NaN, that is what is largest
                raise UserError(_not_numbers(model))
            self.answer.append(int(known[int(rows[-1].argmax())]))
        self.logits = torch.stack(rows) if rows else torch.zeros(0, model.vocab_size)
        self.wrong = next((int(id) for id in known if int(id) not in self.answer), self.prompt[0])

    def prompted(self) -> Runner:
        """A runner that has read the prompt but for its last token, in two pieces."""
        runner, n = self.model.runner(len(self.prompt) + _ANSWER), len(self.prompt)
        for piece in (self.prompt[: n // 2], self.prompt[n // 2 : -1]):
            if piece:
                runner.prefill(piece)
        return runner

    def speculated(self) -> list[tuple[Tensor, slice]]:
        """The same text in rounds, each with right drafts and then wrong ones: logits, and which rows they repeat."""
        runner, text, n, passes = self.prompted(), self.prompt + self.answer, len(self.prompt) - 1, []
        for right, wrong in ((1, 2), (0, 3), (2, 0), (1, 1)):
            if n + 1 + right + wrong > min(len(text), runner.capacity):
                break
            logits = runner.forward(text[n : n + 1 + right] + [self.wrong] * wrong)[: 1 + right]
            first = n + 1 - len(self.prompt)
            passes.append((logits.clone(), slice(first, first + 1 + right)))
            runner.keep(n + 1, list(range(n + 1, n + 1 + right)))
            n += 1 + right
        return passes
