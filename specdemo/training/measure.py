"""How good a draft is, measured without a decoder: on what the target answers to prompts it was not trained on.

Greedy chain drafting needs no simulation token by token. A drafted token is only tested while all before it were
right, so the draft has then read exactly the target's text: one pass over each answer gives its proposal at every
position, and rounds are counted along the matches. The same goes for expected alpha on sampled answers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from specdemo.errors import UserError
from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel
from specdemo.models.progress import Progress, silent
from specdemo.models.vocabulary import draft_ids_of
from specdemo.prompts import read_prompts
from specdemo.training.shards import read_arrays

GAMMA = 4
TEMPERATURE = 0.8
_LISTED = 256  # most likely tokens kept of the target's distribution


@dataclass(frozen=True)
class Answer:
    """The target's answers to one prompt, greedy and sampled at TEMPERATURE, as target ids.

    listed [n, _LISTED] and probs [n, _LISTED]: the target's most likely tokens at each position of the sampled
    answer and their probabilities at TEMPERATURE.
    """

    category: str
    prompt: np.ndarray
    greedy: np.ndarray
    sampled: np.ndarray
    listed: np.ndarray
    probs: np.ndarray


@dataclass(frozen=True)
class Score:
    """What was counted in one category (or over all)."""

    emitted: int = 0
    passes: int = 0
    accepted: int = 0
    tested: int = 0
    overlap: float = 0.0  # sum over sampled positions of sum_x min(p, q)
    sampled: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def tokens_per_pass(self) -> float:
        return self.emitted / self.passes

    @property
    def alpha(self) -> float:
        """Accepted / tested, greedy."""
        return self.accepted / self.tested

    @property
    def expected_alpha(self) -> float:
        """Mean sum_x min(p, q) at TEMPERATURE."""
        return self.overlap / self.sampled


class Draft:
    """An exported draft folder, ready to predict target ids."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        try:
            weights = load_file(folder / "model.safetensors", device=device)
            self.vocab_ids = weights.pop("vocab_ids").long()
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(
                f"{folder} is no draft model of this project's form: it has no model.safetensors with vocab_ids in it. "
                "Make one: python -m specdemo train draft"
            ) from error
        self.model = LeanModel(LlamaConfig.from_pretrained(folder), weights, torch.device(device), torch.float32)
        self.draft_ids = draft_ids_of(self.vocab_ids, int(self.vocab_ids.max()) + 1)

    def encode(self, ids: np.ndarray) -> Tensor:
        """Draft ids [n] of target ids; every token outside becomes the last row's."""
        inside = torch.as_tensor(ids.astype(np.int64)).clamp(max=len(self.draft_ids) - 1)
        outside = torch.as_tensor(ids.astype(np.int64)) >= len(self.draft_ids)
        return torch.where(outside, len(self.vocab_ids), self.draft_ids[inside])

    def logits_along(self, prompt: np.ndarray, answer: np.ndarray) -> Tensor:
        """Logits [len(answer), vocab] that predict each token of the answer, over draft ids."""
        ids = self.encode(np.concatenate((prompt, answer[:-1])))[None]
        hidden = self.model.forward(ids, KVCache(self.model, ids.shape[1]))[0, len(prompt) - 1 :]
        return self.model.logits(hidden)[:, : len(self.vocab_ids)]


def count_rounds(matches: list[bool], gamma: int = GAMMA) -> Score:
    """Rounds of greedy chain drafting over an answer, given whether the draft is right at each position."""
    at = passes = accepted = tested = 0
    while at < len(matches):
        window = matches[at : at + gamma]
        run = window.index(False) if False in window else len(window)
        accepted, tested = accepted + run, tested + min(run + 1, len(window))
        at, passes = at + run + 1, passes + 1
    return Score(len(matches), passes, accepted, tested)


def measure(draft: Draft, answers: list[Answer]) -> dict[str, Score]:
    """Scores by category, and "all"."""
    scores: dict[str, Score] = defaultdict(Score)
    for answer in answers:
        proposals = draft.vocab_ids[draft.logits_along(answer.prompt, answer.greedy).argmax(-1)]
        score = count_rounds((proposals.numpy() == answer.greedy).tolist())
        q = (draft.logits_along(answer.prompt, answer.sampled) / TEMPERATURE).softmax(-1)
        listed = draft.encode(answer.listed.ravel()).view(answer.listed.shape)
        q = torch.cat((q, torch.zeros(len(q), 1)), dim=-1).gather(1, listed)  # q = 0 outside the vocabulary
        overlap = torch.minimum(q, torch.as_tensor(answer.probs).float()).sum().item()
        score += Score(overlap=overlap, sampled=len(q))
        scores[answer.category] += score
        scores["all"] += score
    return scores


def table(scores: dict[str, Score]) -> str:
    """The scores as a Markdown table."""
    lines = [
        f"| category | alpha (greedy) | tokens per pass (greedy, gamma {GAMMA}) | expected alpha (T = {TEMPERATURE}) |",
        "|---|---|---|---|",
    ]
    cells = lambda s: f"{s.alpha:.3f} | {s.tokens_per_pass:.2f} | {s.expected_alpha:.3f}"  # noqa: E731
    lines += [f"| {name} | {cells(score)} |" for name, score in scores.items() if name != "all"]
    mean = np.mean([s.tokens_per_pass for name, s in scores.items() if name != "all"])
    return "\n".join(
        [*lines, f"| **all** | {cells(scores['all'])} |", "", f"Mean over categories: {mean:.2f} tokens per pass."]
    )


def record_answers(
    target: LeanModel, tokenizer, prompts: Path, tokens: int, seed: int = 0, say: Progress = silent
) -> list[Answer]:
    """Let the target (fp32) answer every prompt of a .jsonl file, greedily and sampled, `tokens` tokens at most."""
    entries = read_prompts(prompts)
    chats = [[{"role": "user", "content": prompt}] for _, prompt in entries]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    end = tokenizer.eos_token_id
    greedy = _answer(target, ids, tokens, end, None, lambda share: say("the target answers, greedily", share / 2))
    generator = torch.Generator().manual_seed(seed)
    sampled = _answer(target, ids, tokens, end, generator, lambda share: say("the target answers", 0.5 + share / 2))
    return [
        Answer(category, np.array(prompt), said, *drawn)
        for (category, _), prompt, (said, _, _), drawn in zip(entries, ids, greedy, sampled, strict=True)
    ]


@torch.inference_mode()
def _answer(
    target: LeanModel,
    prompts: list[list[int]],
    tokens: int,
    end: int,
    generator: torch.Generator | None,
    say: Callable[[float], None],
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids [n], listed [n, _LISTED], probs [n, _LISTED]) for each prompt; greedy without a generator.

    All prompts at once: every row takes one token a step, of its prompt or of its answer, so none has to be padded.
    """
    starts, length = [len(prompt) for prompt in prompts], max(map(len, prompts)) + tokens
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    answers: list[list[tuple]] = [[] for _ in prompts]
    open_rows, cache, new = set(range(len(prompts))), KVCache(target, length, len(prompts)), ids[:, : min(starts)]
    for at in range(min(starts), length):
        say(at / length)
        hidden = target.forward(new, cache)[:, -1]
        for row in [row for row in open_rows if at >= starts[row]]:
            logits = target.logits(hidden[row])
            p = (logits / TEMPERATURE).softmax(-1)
            token = int(logits.argmax() if generator is None else torch.multinomial(p, 1, generator=generator))
            top = p.topk(min(_LISTED, len(p)))
            answers[row].append((token, top.indices.numpy().astype(np.uint32), top.values.numpy().astype(np.float16)))
            ids[row, at] = token
            if token == end or len(answers[row]) == tokens:
                open_rows.remove(row)
        if not open_rows:
            break
        new = ids[:, at : at + 1]
    return [tuple(np.stack(column) for column in zip(*answer, strict=True)) for answer in answers]


def save_answers(answers: list[Answer], file: Path) -> None:
    """Keep recorded answers in one .npz, so that a draft is measured in seconds: all of them or, killed, none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".tmp")
    with unfinished.open("wb") as stream:
        np.savez(stream, **{f"{i}.{name}": v for i, answer in enumerate(answers) for name, v in vars(answer).items()})
    os.replace(unfinished, file)


def load_answers(file: Path) -> list[Answer]:
    """Read what `save_answers` wrote. Raises UserError for a file of another kind."""
    fields: dict[int, dict] = defaultdict(dict)
    try:
        for key, value in read_arrays(file).items():
            index, name = key.split(".")
            fields[int(index)][name] = value if name != "category" else str(value)
        answers = [Answer(**fields[i]) for i in range(len(fields))]
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} holds no recorded answers. Name another file with --answers.") from error
    if not answers:
        raise UserError(f"{file} holds no recorded answers. Name another file with --answers.")
    return answers


_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"


def read_card(card: Path) -> tuple[str, str]:
    """What stands before and after the results of a model card. Raises UserError where it has no place for them."""
    try:
        before, rest = card.read_text(encoding="utf-8").split(_BEGIN, 1)
        return before, rest.split(_END, 1)[1]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(
            f"{card} is no text with a '{_BEGIN}' ... '{_END}' section, which the results are written into. Name "
            "another card, or write those marks."
        ) from error


def write_card(card: Path, results: str) -> None:
    """Replace what stands between the results marks of a model card.

    Raises UserError for a card that has none.
    """
    before, after = read_card(card)
    card.write_text(f"{before}{_BEGIN}\n{results}\n{_END}{after}", encoding="utf-8")
