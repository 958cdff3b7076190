"""The controls of a run: Gradio components in one compact bar, and their values in the page's address."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from specdemo.settings import BEST, MAX_GAMMA, Settings
from specdemo.ui import markup
from specdemo.ui.examples import DEFAULT_EXAMPLE, EXAMPLES
from specdemo.ui.host import Host, PairInfo
from specdemo.ui.japanese import both
from specdemo.ui.labels import ACCEPTANCES, LABELS, MODES

FIELDS = (
    "prompt",
    "chat",
    "pair",
    "drafter",
    "rival",
    "gamma",
    "auto_gamma",
    "depth",
    "nodes",
    "acceptance",
    "confidence",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "max_tokens",
    "seed",
    "mode",
)
"""Settings that have a control, in the order of Controls.inputs and of the address."""

_SELECT_JS = """
const box = element.querySelector('select');
box.addEventListener('change', () => { props.value = box.value; trigger('input'); });
watch('value', () => { box.value = props.value; });
"""


@dataclass
class Controls:
    by_field: dict[str, Component]
    run: gr.Button
    stop: gr.Button
    clear: gr.Button

    @property
    def inputs(self) -> list[Component]:
        return [self.by_field[field] for field in FIELDS]


def build_controls(host: Host) -> Controls:
    """Lays the controls out where it is called."""
    label = LABELS["en"]
    by_field: dict[str, Component] = {}
    with gr.Column(elem_id="sd-controls", elem_classes="sd-controls"):
        examples = gr.Radio(
            [(label["example_" + key], key) for key in EXAMPLES],
            value=DEFAULT_EXAMPLE,
            label=label["examples"],
            show_label=False,
            container=False,
            elem_id="sd-examples",
        )
        with gr.Row(elem_classes="sd-prompt-row"):
            by_field["prompt"] = gr.Textbox(
                EXAMPLES[DEFAULT_EXAMPLE].prompt,
                label=label["prompt"],
                lines=3,
                max_lines=6,
                elem_id="sd-prompt",
                scale=1,
            )
            with gr.Column(elem_classes="sd-buttons", scale=0, min_width=120):
                run = gr.Button(label["run"], variant="primary", elem_id="sd-run")
                stop = gr.Button(label["stop"], elem_id="sd-stop")
                clear = gr.Button(label["clear"], elem_id="sd-clear")
            gr.HTML("", html_template=markup.fold(), apply_default_css=False, elem_id="sd-folding", min_width=0)
        by_field |= _main_row(host)
        with gr.Accordion(label["more"], open=False, elem_id="sd-more"):
            by_field |= _more_row(host)
    by_field["gamma"].input(None, None, by_field["auto_gamma"], js="() => false")  # a slider that is moved is meant
    prompts = {key: [example.prompt, example.chat] for key, example in EXAMPLES.items()}
    examples.input(
        None,
        examples,
        [by_field["prompt"], by_field["chat"]],
        js=f"(key) => ({json.dumps(prompts)})[key]",
    )
    # Marked only while the prompt is it.
    keys = [[example.prompt, key] for key, example in EXAMPLES.items()]
    mark = f"(prompt) => new Map({json.dumps(keys)}).get(prompt) ?? null"
    by_field["prompt"].change(None, by_field["prompt"], examples, js=mark)
    return Controls(by_field, run, stop, clear)


def _main_row(host: Host) -> dict[str, Component]:
    label, default = LABELS["en"], defaults(host)
    pairs = [(pair.id, pair.label, _reason(pair)) for pair in host.pairs()]
    known = host.drafters()
    drafters = [(BEST, label["drafter_best"], ""), *((drafter.id, drafter.label, "") for drafter in known)]
    trees = {drafter.id for drafter in known if drafter.is_tree}
    with gr.Row(elem_classes="sd-row"):
        pair = _select("pair", pairs, default.pair)
        drafter = _select("drafter", drafters, default.drafter, trees)
        rival = _select("rival", [("", label["rival_none"], ""), *drafters], default.rival, {"", *trees})
        gamma = gr.Slider(1, MAX_GAMMA, default.gamma, step=1, label=label["gamma"], elem_id="sd-gamma", min_width=120)
        temperature = gr.Slider(
            0, 2, default.temperature, step=0.05, label=label["temperature"], elem_id="sd-temperature", min_width=120
        )
        max_tokens = _number("max_tokens", default.max_tokens)
        mode = _select("mode", [(mode, label["mode_" + mode], "") for mode in MODES], default.mode)
    return {
        "pair": pair,
        "drafter": drafter,
        "rival": rival,
        "gamma": gamma,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "mode": mode,
    }


def _more_row(host: Host) -> dict[str, Component]:
    label, default = LABELS["en"], defaults(host)
    with gr.Row(elem_classes="sd-row"):
        return {
            "top_k": _number("top_k", default.top_k),
            "top_p": _number("top_p", default.top_p, step=0.01, precision=None),
            "min_p": _number("min_p", default.min_p, step=0.01, precision=None),
            "seed": _number("seed", default.seed),
            "depth": _number("depth", default.depth),
            "nodes": _number("nodes", default.nodes),
            "acceptance": _select(
                "acceptance", [(rule, label["acceptance_" + rule], "") for rule in ACCEPTANCES], default.acceptance
            ),
            "confidence": _number("confidence", default.confidence, step=0.05, precision=None),
            "auto_gamma": gr.Checkbox(
                default.auto_gamma, label=label["auto_gamma"], elem_id="sd-auto-gamma", min_width=120
            ),
            "chat": gr.Checkbox(default.chat, label=label["chat"], elem_id="sd-chat", min_width=120),
        }


def labels(host: Host) -> dict[str, dict[str, str]]:
    """LABELS, and the names that the host gives its pairs and drafters, as the options have them."""
    names = {f"pair_{pair.id}": both(markup.option(pair.label, _reason(pair))) for pair in host.pairs()}
    names |= {f"drafter_{drafter.id}": both(drafter.label) for drafter in host.drafters()}
    return {
        language: table | {key: name[language] for key, name in names.items()} for language, table in LABELS.items()
    }


def _reason(pair: PairInfo) -> str:
    return "" if pair.available else pair.reason


def defaults(host: Host) -> Settings:
    """The settings that the page opens with."""
    example = EXAMPLES[DEFAULT_EXAMPLE]
    pair = next((pair.id for pair in host.pairs() if pair.available), Settings.model_fields["pair"].default)
    return Settings(prompt=example.prompt, chat=example.chat, pair=pair)


def _id(field: str) -> str:
    return "sd-" + field.replace("_", "-")


def _number(field: str, value: float, step: float = 1, precision: int | None = 0) -> gr.Number:
    # No bounds here: Settings knows them and explains them; Gradio's own check would only say "5000 is too large".
    return gr.Number(
        value,
        label=LABELS["en"][field],
        step=step,
        precision=precision,
        elem_id=_id(field),
        min_width=90,
    )


def _select(field: str, choices: list[tuple[str, str, str]], chosen: str, trees: Collection[str] = ()) -> gr.HTML:
    """gr.Dropdown cannot show a choice disabled; a native select can."""
    return gr.HTML(
        chosen,
        html_template=markup.select(choices, LABELS["en"][field], chosen, trees),
        js_on_load=_SELECT_JS,
        apply_default_css=False,
        elem_id=_id(field),
        min_width=150,
    )


def from_address(query: Mapping[str, str], host: Host) -> dict[str, Any]:
    """Settings named in an address. A bad value is left out: an old link should still open the page."""
    drafters = {BEST, *(drafter.id for drafter in host.drafters())}
    known = {"pair": {pair.id for pair in host.pairs()}, "drafter": drafters, "rival": {"", *drafters}}
    values: dict[str, Any] = {}
    for field in FIELDS:
        if field in query:
            text = query[field]
            try:
                checked = Settings.model_validate_strings({"prompt": "-", field: text})
            except ValueError:
                continue
            if text in known.get(field, {text}):
                values[field] = getattr(checked, field)
    if "gamma" in values:
        values.setdefault("auto_gamma", False)  # as Settings has it: whoever names a gamma wants that one
    return values
