"""Chat text that the target writes itself, with its own predictions saved on the way.

A draft model is good if it predicts what the *target* says, so it learns from the target's text, not from the
world's. The next-token distribution is at hand while that text is sampled: its top 16 are stored with every
sampled token, and distillation needs no second pass of the target.

Every row of a batch is one conversation and takes one token a step, forced (template) or sampled (user, then
assistant), so no row ever waits and nothing is padded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jinja2 import TemplateError
from torch import Tensor

from specdemo.errors import UserError
from specdemo.models.cache import KVCache
from specdemo.models.lean import LeanModel
from specdemo.models.progress import Progress, silent
from specdemo.training import seeds
from specdemo.training.questions import Asks
from specdemo.training.shards import ASSISTANT, FORCED, TOP, USER, Shard

CANDIDATES = 48  # tokens are sampled from the target's top 48
MAX_ANSWER = 200  # tokens; longer answers are ended for the model, small models start to ramble there
MAX_ASKED_ANSWER = 110  # the same where questions are whole: more questions a conversation
MIN_QUESTION = 4  # sampled tokens before a user turn may end
USER_TEMPERATURE = 0.9
_LOOP_WINDOW = 36  # an answer whose last 36 tokens repeat with a period of at most 12 is ended


@dataclass(frozen=True)
class Template:
    """Token ids of the chat template around the turns."""

    start: list[int]  # system turn and the opening of the first user turn
    end_of_turn: int
    to_assistant: list[int]  # what follows a user's end of turn
    to_user: list[int]  # what follows the assistant's end of turn

    @classmethod
    def of(cls, tokenizer) -> Template:
        """Read the template off a tokenizer by rendering a conversation around three marks. Raises UserError for a
        tokenizer whose conversations cannot be written so."""
        try:
            return cls._read(tokenizer)
        except (ValueError, IndexError, TemplateError) as error:
            raise UserError(
                "The target's tokenizer has no chat template, or one that text cannot be written with turn by turn. "
                "Choose a chat model, or label text that it has written elsewhere: python -m specdemo train label"
            ) from error

    @classmethod
    def _read(cls, tokenizer) -> Template:
        messages = [{"role": r, "content": c} for r, c in (("user", "\0A"), ("assistant", "\0B"), ("user", "\0C"))]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        start, rest = text.split("\0A")
        to_assistant, rest = rest.split("\0B")
        to_user = rest.split("\0C")[0]
        encode = lambda piece: tokenizer.encode(piece, add_special_tokens=False)  # noqa: E731
        between, after = encode(to_assistant), encode(to_user)
        return cls(encode(start), between[0], between[1:], after[1:])


@dataclass
class Conversation:
    """One row: whose turn it is, what is still forced, and how it samples."""

    category: str
    temperature: float  # of the assistant; 0 is greedy
    forced: deque[int]
    speaker: int = USER
    asked: bool = False  # whether user turns are whole questions, none of them sampled
    turn: list[int] = field(default_factory=list)  # sampled tokens of the running turn

    def next(self, sampled: int, runner_up: int, script: Script) -> tuple[int, int]:
        """Take one step: (token id, role), given what the target would say here and its second choice."""
        if self.forced:
            return self.forced.popleft(), FORCED
        if self.speaker == USER and sampled == script.end and len(self.turn) < MIN_QUESTION:
            sampled = runner_up
        if self._must_end():
            self._switch(script)
            return script.end, FORCED
        role = self.speaker
        self.turn.append(sampled)
        if sampled == script.end:
            self._switch(script)
        return sampled, role

    def _must_end(self) -> bool:
        if self.speaker == USER:
            return len(self.turn) >= seeds.CATEGORIES[self.category]
        longest = MAX_ASKED_ANSWER if self.asked else MAX_ANSWER
        return len(self.turn) >= longest or (len(self.turn) % 8 == 0 and is_loop(self.turn))

    def _switch(self, script: Script) -> None:
        self.turn = []
        if self.speaker == USER:
            self.speaker, self.forced = ASSISTANT, deque(script.template.to_assistant)
        elif self.asked:
            self.forced = deque(script.template.to_user + script.question(self.category))
        else:
            self.speaker = USER
            self.forced = deque(script.template.to_user + script.opening(self.category))


class Script:
    """What conversations are made of: the template and the user's turns, drawn with one random stream.

    With `asks`, user turns are whole questions and that draws them.
    """

    def __init__(self, tokenizer, seed: int, asks: Asks | None = None) -> None:
        self.template, self.end = Template.of(tokenizer), Template.of(tokenizer).end_of_turn
        self.tokenizer, self.rng, self.asks = tokenizer, random.Random(seed), asks

    def opening(self, category: str) -> list[int]:
        """Token ids of the beginning of a user turn."""
        return self.tokenizer.encode(seeds.draw_opening(category, self.rng), add_special_tokens=False)

    def question(self, category: str) -> list[int]:
        """Token ids of a whole user turn and what follows it, up to the answer."""
        text = self.asks.draw(category, self.rng)
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.end, *self.template.to_assistant]

    def begin(self) -> Conversation:
        """A new conversation just after `template.start`: most are greedy, the others warmer."""
        greedy = self.rng.random() < (0.8 if self.asks else 0.6)
        temperature = 0.0 if greedy else self.rng.uniform(0.3, 1.0)
        if self.asks:
            category = self.rng.choice(self.asks.categories)
            return Conversation(category, temperature, deque(self.question(category)), ASSISTANT, asked=True)
        category = seeds.draw_category(self.rng)
        return Conversation(category, temperature, deque(self.opening(category)))


def is_loop(tokens: list[int]) -> bool:
    """Whether the last tokens only repeat themselves with a short period."""
    tail = tokens[-_LOOP_WINDOW:]
    return len(tail) == _LOOP_WINDOW and any(tail[p:] == tail[:-p] for p in range(1, _LOOP_WINDOW // 3 + 1))


@torch.inference_mode()
def top_candidates(model: LeanModel, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most likely next tokens after hidden [n, width]: ids and fp32 log-probabilities, both [n, count].

    In bfloat16 a logit of 20 is only known to 0.06, so greedy choices would be decided by rounding. The coarse
    logits choose the candidates and give the normaliser; the candidates' own logits are computed again in fp32.
    """
    logits = model.head(hidden)
    ids = _topk_by_blocks(logits, count)
    exact = torch.einsum("nd,ncd->nc", hidden.float(), model.head_rows(ids).float())
    logprobs, order = (exact - logits.float().logsumexp(-1, keepdim=True)).sort(-1, descending=True)
    return ids.gather(-1, order), logprobs


def _topk_by_blocks(logits: Tensor, count: int, block: int = 64) -> Tensor:
    """Ids of the `count` largest logits [n, vocab], found in the `count` blocks with the largest maxima."""
    n, vocab = logits.shape
    if vocab % block or vocab // block <= count:
        return logits.topk(count).indices
    blocks = logits.view(n, -1, block)
    best = blocks.amax(-1).topk(count).indices  # [n, count]: the top tokens lie in no other block
    members = blocks.gather(1, best[..., None].expand(-1, -1, block)).flatten(1)
    inside = members.topk(count).indices
    return best.gather(1, inside // block) * block + inside % block


def choose(logprobs: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Index [n] into candidates logprobs [n, count]: the first where temperature is 0, else a sample (Gumbel)."""
    noise = -torch.empty_like(logprobs).exponential_(generator=generator).log()
    return (logprobs + temperatures[:, None] * noise).argmax(-1)


@torch.inference_mode()
def generate_batch(
    model: LeanModel, script: Script, rows: int, length: int, say: Callable[[float], None] = lambda share: None
) -> Shard:
    """`rows` conversations of `length` tokens, with the target's top predictions where tokens were sampled."""
    start = script.template.start
    talks = [script.begin() for _ in range(rows)]
    generator = torch.Generator().manual_seed(script.rng.getrandbits(48))
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids[:, : len(start)] = torch.tensor(start)
    role = torch.zeros(rows, length, dtype=torch.uint8)
    top_ids = torch.zeros(rows, length, TOP, dtype=torch.int32)
    top_logprobs = torch.zeros(rows, length, TOP, dtype=torch.float16)
    cache = KVCache(model, length, rows)
    new = ids[:, : len(start)]
    for at in range(len(start), length):
        say(at / length)
        hidden = model.forward(new.to(model.device), cache)[:, -1]
        found, logprobs = (x.cpu() for x in top_candidates(model, hidden, CANDIDATES))
        warmth = torch.tensor([t.temperature if t.speaker == ASSISTANT else USER_TEMPERATURE for t in talks])
        picked = found.gather(1, choose(logprobs, warmth, generator)[:, None])[:, 0].tolist()
        runners_up = torch.where(found[:, 0] == script.end, found[:, 1], found[:, 0]).tolist()
        steps = [talk.next(*choice, script) for talk, *choice in zip(talks, picked, runners_up, strict=True)]
        ids[:, at], role[:, at] = torch.tensor(steps).unbind(1)
        top_ids[:, at], top_logprobs[:, at] = found[:, :TOP].int(), logprobs[:, :TOP].half()
        new = ids[:, at : at + 1]
    known = list(seeds.CATEGORIES)
    category = [known.index(talk.category) if talk.category in known else len(known) for talk in talks]
    temperature = [talk.temperature for talk in talks]
    return Shard.of(ids, role, top_ids, top_logprobs, category, temperature)


def generate(
    model: LeanModel,
    tokenizer,
    folder: Path,
    shards: int,
    rows: int,
    length: int,
    seed: int,
    asks: Asks | None = None,
    say: Progress = silent,
) -> Iterator[Path]:
    """Write shards 0 to `shards`-1 of a seed into `folder`, skipping those that exist; yields each new file."""
    for index, file in enumerate(_files(folder, shards, seed, asks is not None)):
        if not file.exists():
            script = Script(tokenizer, seed * 100_003 + index, asks)
            inside = within(say, f"writing shard {index + 1} of {shards}", index, shards)
            generate_batch(model, script, rows, length, inside).save(file)
            yield file


def within(say: Progress, message: str, done: int, total: int) -> Callable[[float], None]:
    """Says how far the whole is, given the share done of the piece behind the first `done` of `total`."""
    return lambda share: say(message, (done + share) / total)


def is_complete(folder: Path, shards: int, seed: int, asked: bool = False) -> bool:
    """Whether `generate` would have nothing to write."""
    return all(file.exists() for file in _files(folder, shards, seed, asked))


def _files(folder: Path, shards: int, seed: int, asked: bool) -> list[Path]:
    return [folder / f"{'asked' if asked else 'generated'}-{seed}-{index:04d}.npz" for index in range(shards)]


def paragraphs(folder: Path, tokenizer) -> list[str]:
    """Plain paragraphs of 45 to 95 words out of what the target has already written in `folder`, to be summarised."""
    found = []
    for file in sorted(folder.glob("*.npz")):
        shard = Shard.load(file)
        for ids, role in zip(shard.ids, shard.role, strict=True):
            said = tokenizer.decode(ids[role == ASSISTANT].tolist(), skip_special_tokens=True)
            found += [part.strip() for part in said.split("\n\n") if _is_plain(part.strip())]
    return found


def _is_plain(paragraph: str) -> bool:
    return paragraph.endswith(".") and 45 <= len(paragraph.split()) <= 95 and not set(paragraph) & set("`{}|<")


@torch.inference_mode()
def label(model: LeanModel, ids: Tensor, role: Tensor, say: Callable[[float], None] = lambda share: None) -> Shard:
    """Add the target's predictions to text that exists: ids and role [rows, length], by teacher forcing."""
    rows, length = ids.shape
    top_ids = torch.zeros(rows, length, TOP, dtype=torch.int32)
    top_logprobs = torch.zeros(rows, length, TOP, dtype=torch.float16)
    for row in range(0, rows, 8):
        say(row / rows)
        part = ids[row : row + 8]
        hidden = model.forward(part.to(model.device), KVCache(model, length, len(part)))
        wanted = role[row : row + 8, 1:] > 0  # the prediction of token t is made at t - 1
        found, logprobs = top_candidates(model, hidden[:, :-1][wanted.to(model.device)], TOP)
        top_ids[row : row + 8, 1:][wanted] = found.cpu().int()
        top_logprobs[row : row + 8, 1:][wanted] = logprobs.cpu().half()
    return Shard.of(ids, role, top_ids, top_logprobs, [len(seeds.CATEGORIES)] * rows, [float("nan")] * rows)
