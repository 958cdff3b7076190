"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from specdemo.bench.commands import JournalFile, Resume, bench, tune
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
    named,
    tell,
    wide_console,
)
from specdemo.errors import UserError
from specdemo.journal import place
from specdemo.longwork import resumable
from specdemo.outputs import require_writable
from specdemo.training.commands import app as train_app

_LOOK = "rich" if sys.stderr and sys.stderr.isatty() else None
"""Panels are for terminals: elsewhere they would fold sentences and cut paths in two."""

app = typer.Typer(
    name="specdemo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=_LOOK,
)
app.add_typer(train_app, name="train")
app.command()(bench)
app.command()(tune)

page = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=_LOOK)
"""`serve` alone, for app.py."""

_INTERRUPTED = 130  # what a shell calls a command that Ctrl-C has ended
_HOME = re.compile(r"(--[\w-]+=)(~.*)", re.DOTALL)


def start(commands: typer.Typer, name: str) -> None:
    """A process's command line: its one way in and its one way out."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    sys.stdout.reconfigure(errors="replace")  # an old terminal gets question marks, not the end of a long run
    # A shell knows `~` where a word begins: of `--out=~/draft` it leaves a folder named `~`.
    words = [_HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), word) for word in sys.argv[1:]]
    try:
        commands(words, prog_name=name)
    except SystemExit as end:
        if end.code != _INTERRUPTED:
            raise
        # Threads that compute (a pair may still be loading) cannot be ended, and the interpreter's way out would pull
        # their ground away: a core dump. There is nothing left to do but to say goodbye.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_INTERRUPTED)


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
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, envvar="GRADIO_SERVER_PORT", help="Port; the first free one from 7860 on."),
    ] = None,
) -> None:
    """Serve the page. The address is Gradio's own choice: 127.0.0.1 unless GRADIO_SERVER_NAME says otherwise."""
    _log_to_terminal()
    from specdemo.host import Host
    from specdemo.ui.page import build, launch_kwargs

    with explained():
        _require_port(port)
        host = Host(target, draft, head or (), device, dtype)
        host.prepare(host.first_pair)
    with explained():
        try:
            build(host).launch(server_port=port, **launch_kwargs())
        except OSError as error:
            raise UserError(f"The page cannot be served: {error} Choose another port with --port.") from error
    raise typer.Exit(_INTERRUPTED)  # it is served until Ctrl-C


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
    max_tokens: MaxTokens = 160,
    seed: Seed = 0,
    pair: Pair = None,
    trace: Annotated[Path | None, typer.Option(help="Write the race of PROMPT to this file, as JSON.")] = None,
    work: JournalFile = None,
    resume: Resume = False,
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Race in the terminal: one prompt with coloured text, or a table over a file of prompts."""
    console, beside = _consoles(is_table=prompts is not None)
    from specdemo import terminal
    from specdemo.prompts import read_prompts
    from specdemo.settings import Settings

    with explained():
        if prompt and prompts:
            raise UserError("Give one prompt or a file of them with --prompts, not both.")
        if prompts and trace:
            raise UserError("A trace holds one race: give one PROMPT with --trace, or --prompts without it.")
        require_writable(trace, work)
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
        for _, text in asked:
            Settings.checked(**base, prompt=text)
        racing = [drafter, rival] if rival else [drafter]
        loaded = load(pair, target, draft, head, device, dtype, beside, racing)
        if one is None:
            file = place(work, None, "run")
            with resumable(console, f"The races are in {file}; the same command with --resume goes on from there."):
                terminal.run_all(loaded, base | {"record": False}, asked, console, file, resume)
            return
        with resumable(beside, "The race is kept as far as it came." if trace else ""):
            terminal.run_one(loaded, one, console, beside, trace)


@app.command()
def repeat(
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="What `run --trace` wrote, or the page's API gave.")],
    pair: Pair = None,
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Run the race of a trace again: by its settings and costs every lane writes its text again. Status 1 if not."""
    console, beside = _consoles()
    from specdemo import terminal
    from specdemo.race import drafters
    from specdemo.repeated import compared, pair_of, read_trace

    with explained():
        earlier = read_trace(file)
        if not (pair or target or draft or head):
            pair = pair_of(earlier)
        racing = list(drafters(earlier.settings).values())
        loaded = load(pair, target, draft, head, device, dtype, beside, racing)
        with resumable(beside, ""):
            again = terminal.run_one(loaded, earlier.settings, console, beside, costs=earlier.costs)
        same, told = compared(earlier, again)
        tell(beside, told, "green" if same else "red")
    if not same:
        raise typer.Exit(1)


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(callback=named, help="A published Medusa or EAGLE checkpoint: a folder or a hub id.")
    ],
    out: Annotated[Path, typer.Argument(help="A new folder, for --head.")],
) -> None:
    """Bring a published Medusa, EAGLE, EAGLE-2 or EAGLE-3 checkpoint into the form that --head takes."""
    from specdemo.models.convert import convert as convert_checkpoint

    console = wide_console()
    with explained():
        require_writable(folders=[out])
        with console.status("Converting"):
            label = convert_checkpoint(source, out)
        console.print(f"{label}: written to {out}. Use it: --target THE_MODEL_IT_IS_FOR --head {out}", markup=False)


def _consoles(is_table: bool = False) -> tuple[Console, Console]:
    """Where an answer goes and where all else does, the log too: one prompt's answer is all that a pipe gets."""
    console = wide_console()
    beside = console if is_table or console.is_terminal else wide_console(stderr=True)
    _log_to_terminal(beside.file)
    return console, beside


def _log_to_terminal(stream: IO[str] | None = None) -> None:
    stream = stream or sys.stdout
    where = RichHandler(show_path=False) if sys.stdout.isatty() else logging.StreamHandler(stream)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[where])
    logging.getLogger("specdemo").setLevel(logging.INFO)


def _require_port(port: int | None) -> None:
    """Raises UserError where the page could not be served: tried as Gradio will try it, before anything is loaded."""
    from gradio.http_server import INITIAL_PORT_VALUE, LOCALHOST_NAME, TRY_NUM_PORTS

    ports = range(INITIAL_PORT_VALUE, INITIAL_PORT_VALUE + TRY_NUM_PORTS) if port is None else [port]
    for each in ports:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOCALHOST_NAME, each))
                return
            except (socket.gaierror, UnicodeError):
                name = os.environ.get("GRADIO_SERVER_NAME")
                raise UserError(f"GRADIO_SERVER_NAME is {name!r}, which is no address of this machine.") from None
            except OSError as error:
                why = error.strerror
    where = f"port {port}" if port else f"any port from {ports[0]} to {ports[-1]}"
    raise UserError(f"The page cannot be served on {where} of {LOCALHOST_NAME} ({why}). Choose another with --port.")
