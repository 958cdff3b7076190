"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from specdemo.errors import UserError
from specdemo.training.commands import app as train_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(train_app, name="train")

Target = Annotated[str | None, typer.Option(help="A target of your own: a folder or a hub id.")]
Draft = Annotated[str | None, typer.Option(help="Its draft model: a folder or a hub id of the same tokenizer.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. The best one here by default.")]
Dtype = Annotated[str | None, typer.Option(help="fp32, bf16 or fp16. Chosen by device by default.")]


@app.callback()
def main() -> None:
    """Speculative decoding made visible."""


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
    build(host).launch(server_port=port, **launch_kwargs())


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
