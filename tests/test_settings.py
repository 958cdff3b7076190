"""Whatever text comes from outside, it can be read by a tokenizer and written as JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.models.loading import LoadedPair
from specdemo.settings import Settings, well_formed

HALVES = {
    "half an emoji \ud83d": "half an emoji \ufffd",
    "\ude00\ud83d the wrong way round": "\ufffd\ufffd the wrong way round",
    "both halves \ud83d\ude00": "both halves 😀",
    "an undecodable byte \udcff": "an undecodable byte \ufffd",
}
ODD = [
    "\0",
    "a\0b\x1b[31m\x7f",
    "\ufeffbom",
    "\u202eright to left\u202c",
    "a\u2028b\u2029c\u0085",
    "\ufffe\U0010ffff",
    "\r\n\r",
]


@pytest.mark.parametrize(("given", "read"), HALVES.items())
def test_half_a_character_is_replaced_and_two_halves_are_joined(given: str, read: str) -> None:
    assert Settings.checked(prompt=given).prompt == read


@pytest.mark.parametrize("field", ["prompt", "pair", "drafter", "rival"])
def test_settings_can_always_be_written(field: str) -> None:
    settings = Settings.checked(**{"prompt": "a", field: "\ud83d"})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@given(st.text())
def test_whole_text_stays_as_it_is(text: str) -> None:
    assert well_formed(text) == text


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("prompt", [*HALVES, *ODD])
def test_a_tokenizer_reads_every_prompt(default_pair: LoadedPair, prompt: str, chat: bool) -> None:
    settings = Settings(prompt=prompt, chat=chat)
    assert settings.prompt in default_pair.tokens.decode(default_pair.tokens.encode(settings.prompt, chat))
