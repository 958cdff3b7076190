"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from specdemo.errors import UserError
from specdemo.training.commands import app as train_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(train_app, name="train")

page = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""`serve` alone, for app.py."""

Target = Annotated[str | None, typer.Option(help="A target of your own: a folder or a hub id.")]
Draft = Annotated[str | None, typer.Option(help="Its draft model: a folder or a hub id of the same tokenizer.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. The best one here by default.")]
Dtype = Annotated[str | None, typer.Option(help="fp32, bf16 or fp16. Chosen by device by default.")]
Drafter = Annotated[str, typer.Option(help="draft-model, prompt-lookup or lookup-then-draft.")]
Gamma = Annotated[str, typer.Option(help="Drafts a round, or auto.")]
Confidence = Annotated[float, typer.Option(help="End a draft where its next token survives with less; 0 is never.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer.")]
Seed = Annotated[int, typer.Option(help="Fixes every draw.")]


@app.callback()
def main() -> None:
    """Speculative decoding made visible."""


@page.command()
@app.command()
def serve(
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
    port: Annotated[int | None, typer.Option(help="Port to serve on; GRADIO_SERVER_PORT or 7860 by default.")] = None,
) -> None:
    """Serve the page. The address is Gradio's own choice: 127.0.0.1 unless GRADIO_SERVER_NAME says otherwise."""
    _log_to_terminal()
    from specdemo.host import Host
    from specdemo.ui.page import build, launch_kwargs

    with explained():
        host = Host(target, draft, device, dtype)
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
    drafter: Drafter = "draft-model",
    gamma: Gamma = "4",
    confidence: Confidence = 0.0,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 128,
    seed: Seed = 0,
    trace: Annotated[Path | None, typer.Option(help="Write the race of PROMPT to this file, as JSON.")] = None,
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Race in the terminal: one prompt with coloured text, or a table over a file of prompts."""
    _log_to_terminal()
    from specdemo import terminal
    from specdemo.models.device import choose_device, choose_dtype, use_cpu_quota
    from specdemo.models.loading import load_pair
    from specdemo.models.pairs import DEFAULT_PAIR, PAIRS, own_pair
    from specdemo.prompts import read_prompts
    from specdemo.settings import Settings

    console = Console()
    with explained():
        chosen = choose_device(device)
        base = {
            "drafter": drafter,
            "confidence": confidence,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        } | gamma_settings(gamma)
        asked = read_prompts(prompts) if prompts else []
        one = None if prompts else Settings.checked(**base, prompt=prompt or "", record=trace is not None)
        use_cpu_quota()
        with console.status("Loading the models"):
            loaded = load_pair(own_pair(target, draft) or PAIRS[DEFAULT_PAIR], chosen, choose_dtype(chosen, dtype))
        if one is None:
            terminal.run_all(loaded, base | {"record": False}, asked, console)
            return
        kept, metrics = terminal.collect(loaded, one)
        terminal.show(kept, metrics, console)
        if trace:
            trace.write_text(kept.to_json(), encoding="utf-8")


def gamma_settings(text: str) -> dict[str, int | bool]:
    """What `--gamma` asks for, as settings."""
    if text == "auto":
        return {"auto_gamma": True}
    try:
        return {"gamma": int(text)}
    except ValueError:
        raise UserError(f"Gamma is {text!r}: it should be a number of drafts or auto.") from None


@contextmanager
def explained() -> Iterator[None]:
    """A user's mistake ends the command with its sentence; anything else keeps its traceback."""
    try:
        yield
    except UserError as error:
        Console(stderr=True).print(str(error), style="red", highlight=False, markup=False)
        raise typer.Exit(2) from None


def _log_to_terminal() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(show_path=False)])
    logging.getLogger("specdemo").setLevel(logging.INFO)
