"""Everything that the code behind the page can say to a visitor exists in Japanese."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdemo
from specdemo.drafters import DRAFTERS, NEEDS
from specdemo.errors import UserError
from specdemo.models.pairs import PAIRS, why_not
from specdemo.settings import Settings
from specdemo.ui.japanese import CATALOGUE, both, japanese

ROOT = Path(specdemo.__file__).parent
MODELS = ("files", "loading", "wheel", "kept", "pairs", "probe", "tokens")
SPEAK_TO_VISITORS = (
    "settings",
    "race",
    "host",
    "ui/stream",
    "drafters/__init__",
    *(f"models/{name}" for name in MODELS),
)
SAYING = {"UserError", "progress", "Status"}


def said(node: ast.AST) -> str | None:
    """The sentence that a string or an f-string makes, with numbers for its values; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else str(i) for i, part in enumerate(node.values))
    return None


def sentences(module: str) -> Iterator[str]:
    """What a module says in words: given to one of SAYING, or given back by a function as a whole sentence."""
    for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYING:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Return) and (said(node.value) or "").endswith("."):
            values = [node.value]
        else:
            continue
        yield from (text for value in values if re.search("[a-z] ", text := said(value) or ""))


@pytest.mark.parametrize("module", SPEAK_TO_VISITORS)
def test_every_sentence_of_the_source_has_its_japanese(module):
    assert [text for text in sentences(module) if japanese(text) == text] == []


def test_every_translation_is_of_something_that_is_said():
    source = "".join(file.read_text(encoding="utf-8") for file in ROOT.rglob("*.py") if file.name != "japanese.py")
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # strings over several lines
    for english in CATALOGUE:
        longest = max(re.split(r"\{\w+\}", english), key=len).strip()
        assert longest in joined or english.startswith(("a ", "less", "greater", "'{")), english


def test_names_of_pairs_and_drafters_have_their_japanese():
    for kind in DRAFTERS.values():
        assert kind.label in ("EAGLE", "Medusa") or japanese(kind.label) != kind.label
    for sentence in NEEDS.values():
        assert japanese(sentence) != sentence
    assert japanese(PAIRS["smollm2-135m"].label) == "SmolLM2-135M ← 自前の下書きモデル"
    for reason in (why_not(PAIRS["qwen2.5-7b"], 10**9, 4, False), why_not(PAIRS["qwen2.5-7b"], 10**12, 4, True)):
        assert re.search("[ぁ-ん]", japanese(f"{PAIRS['qwen2.5-7b'].label} — {reason}"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 99},
        {"gamma": None},
        {"gamma": 1.5},
        {"temperature": -1},
        {"top_p": 0},
        {"min_p": 1},
        {"top_p": None},
        {"mode": "x"},
        {"acceptance": "x"},
        {"seed": -1, "max_tokens": 5000, "nodes": 0},
        {"max_tokens": "a"},
        {"chat": None},
        {"chat": "maybe"},
        {"pair": None},
        {"temperature": "warm"},
        {"top_k": float("inf")},
        {"prompt": " "},
    ],
    ids=str,
)
def test_complaints_about_settings_are_japanese_throughout(wrong):
    with pytest.raises(UserError) as raised:
        Settings.checked(**{"prompt": "x", **wrong})
    told = japanese(str(raised.value))
    left = re.sub(r"'\w+'|race|baseline|speculative|exact|typical|Top-[kp]|Min-p|inf", "", told)
    assert not re.search("[A-Za-z]{2,}", left), told
    assert told.count("。") >= len(wrong)


def test_what_is_said_keeps_its_values():
    said = "Loading SmolLM2-135M ← draft trained here"
    assert both(said) == {"en": said, "ja": "SmolLM2-135M ← 自前の下書きモデル を読み込み中"}
    assert japanese("No such sentence. Nor this.") == "No such sentence. Nor this."
    assert japanese("M1 ← draft 4.8M · cpu · fp32") == "M1 ← 下書き 4.8M · cpu · fp32"
    long = "The prompt has 9,000 tokens, but My-Model reads at most 8,192 with the answer. Shorten it."
    assert re.findall(r"[\d,]{2,}", japanese(long)) == ["9,000", "8,192"]
