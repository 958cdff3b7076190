"""The API endpoint `/run`, for programs instead of eyes:

    from gradio_client import Client
    trace = Client("http://127.0.0.1:7860").predict("Why is the sky blue?", max_tokens=64, api_name="/run")

It waits in the same line as the page. `submit` instead of `predict` also gives the progress on the way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from specdemo.errors import UserError
from specdemo.settings import Acceptance, Mode, Settings
from specdemo.ui.controls import FIELDS
from specdemo.ui.deltas import LANES
from specdemo.ui.stream import Run, Streamer

PROGRESS_SECONDS = 0.5

_DEFAULT = {name: field.default for name, field in Settings.model_fields.items()}


def endpoint(streamer: Streamer) -> Callable[..., Iterator[dict[str, Any]]]:
    """A function for gr.api, which reads parameters and their types off the signature."""

    def run(
        prompt: str,
        chat: bool = _DEFAULT["chat"],
        pair: str = _DEFAULT["pair"],
        drafter: str = _DEFAULT["drafter"],
        rival: str = _DEFAULT["rival"],
        gamma: int = 0,
        auto_gamma: bool = _DEFAULT["auto_gamma"],
        depth: int = _DEFAULT["depth"],
        nodes: int = _DEFAULT["nodes"],
        acceptance: Acceptance = _DEFAULT["acceptance"],
        confidence: float = _DEFAULT["confidence"],
        temperature: float = _DEFAULT["temperature"],
        top_k: int = _DEFAULT["top_k"],
        top_p: float = _DEFAULT["top_p"],
        min_p: float = _DEFAULT["min_p"],
        max_tokens: int = _DEFAULT["max_tokens"],
        seed: int = _DEFAULT["seed"],
        mode: Mode = _DEFAULT["mode"],
    ) -> Iterator[dict[str, Any]]:
        """Race a prompt through the decoders. Gives {"waiting": {"place": a, "of": b}} while others decode,
        {"tokens": {lane: n}} on the way and at last the whole trace.

        gamma 0 is chosen live, and so are the sizes of trees, unless auto_gamma is false; any other gamma is fixed.
        """
        given = locals() | ({"auto_gamma": False} if gamma else {"gamma": _DEFAULT["gamma"]})
        try:
            race = Run(Settings.checked(**{field: given[field] for field in FIELDS}))
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from None
        yield from _progress(streamer, race)
        trace = race.trace()
        if trace is not None:
            yield json.loads(trace.to_json())

    return run


def _progress(streamer: Streamer, race: Run) -> Iterator[dict[str, Any]]:
    told = time.monotonic()
    progress: dict[str, Any] = {"tokens": {}}
    for update in streamer.updates(race):
        deltas = json.loads(update)["deltas"]
        delta = deltas[-1] if deltas else {}
        if delta.get("phase") == "error":
            raise gr.Error(delta["message"]["en"], print_exception=False)
        if delta.get("phase") == "queued":
            progress = {"waiting": {"place": delta["a"], "of": delta["b"]}}
        elif "numbers" in delta and time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            numbers = delta["numbers"]
            progress = {"tokens": {lane: numbers[lane]["tokens"] for lane in LANES if lane in numbers}}
        elif deltas:
            continue
        yield progress  # a beat repeats it: a program that went away is noticed by what it is sent
