"""The page. `build(host)` gives the Blocks; launch them with `**launch_kwargs()`:

    page = build(host)
    page.launch(**launch_kwargs())

Gradio's queue starts every run at once; they take turns in a line of their own (specdemo/ui/line.py). Besides the page
there is one API endpoint, `/run` (see specdemo/ui/api.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from specdemo.errors import UserError
from specdemo.settings import Settings
from specdemo.ui import api, markup
from specdemo.ui.assets import PREFIX, STYLES, LastSlash, routes
from specdemo.ui.controls import FIELDS, Controls, build_controls, defaults, from_address, labels
from specdemo.ui.copy import TEXTS
from specdemo.ui.host import Host
from specdemo.ui.japanese import both
from specdemo.ui.stream import Run, Streamer
from specdemo.ui.theme import theme
from specdemo.ui.visitor import Visitor

STATUS_SECONDS = 0.5
LINGER_SECONDS = 2.0

# Linked, since launch(css=...) rewrites selectors and drops the rules it does not know.
_HEAD = '<meta name="viewport" content="width=device-width, initial-scale=1">' + "".join(
    f'<link rel="stylesheet" href=".{PREFIX}/css/{name}.css">' for name in STYLES
)


def launch_kwargs() -> dict[str, Any]:
    """What Blocks.launch needs for this page: its style, its files, and nothing from other hosts."""
    return {
        "theme": theme(),
        "head": _HEAD,
        "app_kwargs": {"routes": routes(), "middleware": [Middleware(LastSlash)]},
        "footer_links": ["api"],
        "ssr_mode": False,
        "show_error": True,
    }


def build(host: Host) -> gr.Blocks:
    """The page over a host."""
    streamer = Streamer(host)
    with gr.Blocks(title=TEXTS["en"]["title"], analytics_enabled=False, fill_width=True) as page:
        _static(markup.header(host.headline()), "sd-header")
        controls = build_controls(host)
        _static(
            markup.stage(),
            "sd-stage-block",
            _module("mountStage"),
            texts=TEXTS,
            labels=labels(host),
            defaults=defaults(host).model_dump(include=set(FIELDS)),
            drafters={drafter.id: both(drafter.label) for drafter in host.drafters()},
            headline=both(host.headline()),
        )
        # Three unseen components carry JSON to the page's script: the run's updates, answers to its questions, and
        # what is loading.
        feed = _channel("sd-feed", "mountFeed")
        reply = _channel("sd-reply", "mountReply")
        status = _channel("sd-status", "mountStatus")
        visitor = gr.State(Visitor())
        feed.begin(
            _runner(streamer),
            [visitor, *controls.inputs],
            feed,
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
            trigger_mode="multiple",  # Run after Clear must not be swallowed while the cleared run winds up
        )
        hidden: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
        feed.halt(_halt, visitor, None, trigger_mode="multiple", **hidden)
        feed.ask(_answer, visitor, reply, trigger_mode="multiple", **hidden)
        _wire_settings(page, host, controls)
        _wire_loading(host, status)
        gr.api(
            api.endpoint(streamer),
            api_name="run",
            concurrency_limit=None,
        )
    return page


def _static(template: str, elem_id: str, js: str | None = None, **props: Any) -> gr.HTML:
    return gr.HTML(
        "", html_template=template, js_on_load=js, apply_default_css=False, elem_id=elem_id, container=False, **props
    )


def _channel(elem_id: str, mount: str) -> gr.HTML:
    """JSON from the server to the page's script. The template is empty, so Gradio renders none of it."""
    return gr.HTML("", html_template="<i></i>", js_on_load=_module(mount), elem_id=elem_id, elem_classes="sd-channel")


def _module(function: str) -> str:
    """Script for js_on_load. Naming the events makes Gradio offer them as listeners."""
    return f"""
const events = ['begin', 'halt', 'ask'];
import(new URL('.{PREFIX}/js/page.js', document.baseURI).href)
  .then((page) => page.{function}({{element, trigger, props, watch}}));
"""


def _runner(streamer: Streamer) -> Callable[..., Iterator[str]]:
    """What the page's script asks for when Run is pressed: updates of a run that it has named."""

    def begin(event: gr.EventData, visitor: Visitor, *values: Any) -> Iterator[str]:
        named = str(event._data["run"])
        try:
            race = Run(Settings.checked(**dict(zip(FIELDS, values, strict=True))), named)
            visitor.begin(race, event._data.get("after"))
        except UserError as error:
            # Not a run: the last one, its text and its trace stay.
            yield json.dumps({"run": named, "refused": both(str(error))})
            return
        yield from streamer.updates(race)
        # Gradio's client hangs up behind a page's last event. A run that comes at that very moment is cut off, so one
        # that follows at once finds the line still open.
        race.followed.wait(LINGER_SECONDS)

    return begin


def _halt(visitor: Visitor, event: gr.EventData) -> None:
    visitor.halt(str(event._data["run"]))


def _answer(visitor: Visitor, event: gr.EventData) -> str:
    return visitor.answer(event._data or {})


def _wire_settings(page: gr.Blocks, host: Host, controls: Controls) -> None:
    """Settings follow the address when the page opens, and the address follows the settings afterwards."""

    def load(request: gr.Request) -> list[Any]:
        values = from_address(request.query_params, host)
        return [values.get(field, gr.skip()) for field in FIELDS]

    names = json.dumps(FIELDS)
    remember = f"(...values) => window.specdemo?.remember({names}, values)"
    loaded = page.load(load, None, controls.inputs, queue=False, show_progress="hidden", api_visibility="private")
    # The page's script may come later than these values, and a select that the address filled tells of no change.
    script = f"import(new URL('.{PREFIX}/js/page.js', document.baseURI).href)"
    first = f"(...values) => {{ {script}.then(() => window.specdemo.remember({names}, values)); }}"
    arrive = f"(prompt) => {script}.then(() => window.specdemo.arrive(prompt))"
    prompt = controls.by_field["prompt"]
    loaded.then(None, prompt, prompt, js=arrive).then(None, controls.inputs, None, js=first)
    gr.on([control.change for control in controls.inputs], None, controls.inputs, None, js=remember)


def _wire_loading(host: Host, status: gr.HTML) -> None:
    """A timer tells how far loading is until it has ended. Only a run loads another pair, when its turn in the queue
    has come: a visitor who merely looks through the list must not take the models from one who is running."""
    timer = gr.Timer(STATUS_SECONDS)
    hidden: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def tell() -> tuple[str, gr.Timer]:
        now = host.status()
        said = {
            "message": both(now.message),
            "error": both(now.error) if now.error else None,
            "headline": both(host.headline()),
        }
        told = json.dumps({**now.model_dump(), **said}, ensure_ascii=False)
        return told, gr.Timer(active=not (now.ready or now.error))

    timer.tick(tell, None, [status, timer], **hidden)
