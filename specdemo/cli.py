"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler

from specdemo.bench.commands import bench, tune
from specdemo.cli_options import (
    Confidence,
    Depth,
    Device,
    Draft,
    Drafter,
    Dtype,
    Gamma,
    Head,
    MaxTokens,
    Nodes,
    Pair,
    Rival,
    Seed,
    Target,
    Temperature,
    explained,
    gamma_settings,
    load,
    require_folder,
    wide_console,
)
from specdemo.errors import UserError
from specdemo.training.commands import app as train_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(train_app, name="train")
app.command()(bench)
app.command()(tune)

page = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""`serve` alone, for app.py."""


@app.callback()
def main() -> None:
    """Speculative decoding made visible."""


@page.command()
@app.command()
def serve(
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
    port: Annotated[int | None, typer.Option(help="Port to serve on; GRADIO_SERVER_PORT or 7860 by default.")] = None,
) -> None:
    """Serve the page. The address is Gradio's own choice: 127.0.0.1 unless GRADIO_SERVER_NAME says otherwise."""
    _log_to_terminal()
    from specdemo.host import Host
    from specdemo.ui.page import build, launch_kwargs

    with explained():
        host = Host(target, draft, head or (), device, dtype)
        host.prepare(host.first_pair)
    with explained():
        try:
            build(host).launch(server_port=port, **launch_kwargs())
        except OSError as error:
            raise UserError(f"The page cannot be served: {error} Choose another port with --port.") from error


@app.command()
def run(
    prompt: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    prompts: Annotated[Path | None, typer.Option(help='A file of {"category", "prompt"} lines instead.')] = None,
    drafter: Drafter = "best",
    rival: Rival = "",
    gamma: Gamma = "auto",
    depth: Depth = 6,
    nodes: Nodes = 16,
    confidence: Confidence = 0.0,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 128,
    seed: Seed = 0,
    pair: Pair = None,
    trace: Annotated[Path | None, typer.Option(help="Write the race of PROMPT to this file, as JSON.")] = None,
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Race in the terminal: one prompt with coloured text, or a table over a file of prompts."""
    _log_to_terminal()
    from specdemo import terminal
    from specdemo.prompts import read_prompts
    from specdemo.settings import Settings

    console = wide_console()
    with explained():
        if prompt and prompts:
            raise UserError("Give one prompt or a file of them with --prompts, not both.")
        require_folder(trace)
        base = {
            "drafter": drafter,
            "depth": depth,
            "nodes": nodes,
            "rival": rival,
            "confidence": confidence,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        } | gamma_settings(gamma)
        asked = read_prompts(prompts) if prompts else []
        one = None if prompts else Settings.checked(**base, prompt=prompt or "", record=trace is not None)
        loaded = load(pair, target, draft, head, device, dtype, console)
        if one is None:
            terminal.run_all(loaded, base | {"record": False}, asked, console)
            return
        kept, metrics = terminal.collect(loaded, one)
        terminal.show(kept, metrics, console)
        if trace:
            trace.write_text(kept.to_json(), encoding="utf-8")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="A published Medusa or EAGLE checkpoint: a folder or a hub id.")],
    out: Annotated[Path, typer.Argument(help="A new folder, for --head.")],
) -> None:
    """Bring a published Medusa, EAGLE, EAGLE-2 or EAGLE-3 checkpoint into the form that --head takes."""
    from specdemo.models.convert import convert as convert_checkpoint

    console = wide_console()
    with explained():
        with console.status("Converting"):
            label = convert_checkpoint(source, out)
        console.print(f"{label}: written to {out}. Use it: --target THE_MODEL_IT_IS_FOR --head {out}", markup=False)


def _log_to_terminal() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(show_path=False)])
    logging.getLogger("specdemo").setLevel(logging.INFO)
