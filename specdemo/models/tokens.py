"""Tokenizers: visitors' text to ids without side effects, ids to text, and whether two tokenizers are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jinja2 import TemplateError
from transformers import AutoTokenizer

from specdemo.errors import UserError

_SAMPLES = ("a", "0", "the", "\u3042")  # some text that a vocabulary has a token for
_PLACEHOLDER = "\ue000prompt\ue000"  # private-use characters: no template and no prompt contains them


@dataclass(frozen=True)
class Tokens:
    """A tokenizer as decoding needs it. eos_ids: every id that ends a text, perhaps none."""

    tokenizer: object
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer, *configs) -> Tokens:
        """Gathers end-of-text ids from tokenizer, model and generation configs: an id, a list, or none in each."""
        found: set[int] = set()
        for source in (tokenizer, *configs):
            ids = getattr(source, "eos_token_id", None)
            found.update(ids if isinstance(ids, Iterable) else [] if ids is None else [ids])
        return cls(tokenizer, frozenset(found))

    def encode(self, prompt: str, chat: bool) -> list[int]:
        """Token ids of a prompt, within the chat template where wanted and where the model has one.

        Text that looks like a control token stays text: a visitor who types <|im_end|> ends nothing.
        """
        if not (chat and self.tokenizer.chat_template):
            return [*self.beginning, *self._plain(prompt)]
        before, after = self._around()
        if not any(token in prompt for token in self.tokenizer.get_added_vocab()):
            return self.tokenizer.encode(before + prompt + after, add_special_tokens=False)
        encode = self.tokenizer.encode
        return [
            *encode(before, add_special_tokens=False),
            *self._plain(prompt),
            *encode(after, add_special_tokens=False),
        ]

    @cached_property
    def beginning(self) -> list[int]:
        """What the tokenizer puts before every text: a beginning-of-text token, mostly. (Some put an end behind it.)"""
        for sample in _SAMPLES:
            framed, plain = self.tokenizer.encode(sample), self.tokenizer.encode(sample, add_special_tokens=False)
            starts = range(len(framed) - len(plain) + 1)
            if plain and (at := next((i for i in starts if framed[i : i + len(plain)] == plain), None)) is not None:
                return framed[:at]
        return []

    def _around(self) -> tuple[str, str]:
        """What the chat template puts before and behind a prompt."""
        question = [{"role": "user", "content": _PLACEHOLDER}]
        try:
            rendered = self.tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
            before, after = rendered.split(_PLACEHOLDER)
        except (TemplateError, ValueError, TypeError) as error:
            raise UserError(
                f"The model's chat template cannot frame a prompt ({error}). Switch the chat template off."
            ) from error
        return before, after

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


def load_tokenizer(**source):
    """As AutoTokenizer.from_pretrained does it. Raises ValueError, and what transformers raises, for broken files."""
    try:
        return AutoTokenizer.from_pretrained(trust_remote_code=False, **source)
    except Exception as error:
        if type(error) is Exception:  # the tokenizers library has no kinds of its own
            raise ValueError(str(error)) from error
        raise


def vocabulary_size(tokenizer) -> int:
    """One more than the highest id of any token. Ids below it that no token has are the model's own business: it has
    learned not to write them, and both lanes would write the same."""
    return max(tokenizer.get_vocab().values()) + 1


def fingerprint(tokenizer) -> str:
    """sha256 of the vocabulary: equal where every token has the same id."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def require_same(target, draft) -> None:
    """Raises UserError where a draft's tokenizer gives tokens other ids than the target's.

    Only the tokenizers count: embeddings may be padded to different sizes (Qwen2.5 has 151,936 and 152,064 rows for
    one vocabulary), and ids in the padding are never predicted.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    example = differing[0]
    raise UserError(
        f"Target and draft have different tokenizers: {len(differing):,} tokens differ, for example {example!r} "
        f"(id {ours.get(example, 'none')} in the target, {theirs.get(example, 'none')} in the draft). Speculative "
        "decoding needs one vocabulary: choose a draft of the target's family."
    )
