"""Options that several commands share, and how their mistakes are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdemo.errors import UserError
from specdemo.settings import BEST

if TYPE_CHECKING:
    from specdemo.models.loading import LoadedPair


def named(value: str | list[str] | None) -> str | list[str] | None:
    """What an option names, which is something: a shell's variable that is not set would quietly choose the default."""
    if any(not name.strip() for name in ([value] if isinstance(value, str) else value or [])):
        raise typer.BadParameter("it is empty. Name something, or leave the option out.")
    return value


Pair = Annotated[str | None, typer.Option(callback=named, help="A pair of the registry; the built-in one by default.")]
Target = Annotated[str | None, typer.Option(callback=named, help="A target of your own: a folder or a hub id.")]
Draft = Annotated[
    str | None, typer.Option(callback=named, help="Its draft model: a folder or a hub id of the same tokenizer.")
]
Head = Annotated[
    list[str] | None, typer.Option(callback=named, help="Folder of an EAGLE or Medusa head; may be given twice.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. The best one here by default.")]
Dtype = Annotated[str | None, typer.Option(help="fp32, bf16 or fp16. Chosen by device by default.")]
Drafter = Annotated[str, typer.Option(help="best is the pair's fastest; else draft-model, eagle, medusa, ...")]
Rival = Annotated[str, typer.Option(help="The drafter of a third lane, to race the first one; none by default.")]
Gamma = Annotated[str, typer.Option(help="Drafts a round, or auto.")]
Depth = Annotated[int, typer.Option(help="Tokens from the text to the furthest node of a tree of drafts.")]
Nodes = Annotated[int, typer.Option(help="Nodes of a tree that a round verifies; with --gamma auto, at most.")]
Confidence = Annotated[float, typer.Option(help="End a draft where its next token survives with less; 0 is never.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer.")]
Seed = Annotated[int, typer.Option(help="Fixes every draw.")]


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
        tell(Console(stderr=True), str(error), "red")
        raise typer.Exit(2) from None


def load(
    pair: str | None,
    target: str | None,
    draft: str | None,
    head: list[str] | None,
    device: str | None,
    dtype: str | None,
    console: Console,
    drafters: Sequence[str] = (),
) -> LoadedPair:
    """The pair that a command asks for, ready to decode. Raises UserError for one that is not to be had, or that is
    known to lack what one of the drafters needs before it is loaded."""
    from specdemo.drafters import NEEDS, find_drafter
    from specdemo.models.device import choose_device, choose_dtype, use_cpu_quota
    from specdemo.models.loading import load_pair
    from specdemo.models.pairs import DEFAULT_PAIR, PAIRS, find_pair, own_pair

    if pair and (target or draft or head):
        raise UserError("Give a pair of the registry or a target and draft of your own, not both.")
    chosen = choose_device(device)
    found = own_pair(target, draft, head or ()) or find_pair(PAIRS, pair or DEFAULT_PAIR)
    precision = choose_dtype(chosen, dtype)
    for name in drafters:
        if name == BEST:  # every pair has one
            continue
        for missing in find_drafter(name).missing(found.has):
            raise UserError(NEEDS[missing])
    use_cpu_quota()
    if not console.is_terminal:  # where a spinner is not seen
        console.print("Loading the models")
    with console.status("Loading the models"):
        loaded = load_pair(found, chosen, precision)
    for warning in loaded.warnings:
        tell(console, warning, "yellow")
    return loaded


def tell(console: Console, sentence: str, style: str) -> None:
    """Print a sentence as it stands. Only a terminal needs its lines broken: elsewhere that would cut paths in two."""
    console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def wide_console(stderr: bool = False) -> Console:
    """The terminal, or 150 columns where output goes to a file: tables should not be folded there. Names of categories
    and models are printed as they are: square brackets in them are no markup."""
    console = Console(markup=False, stderr=stderr)
    return console if console.is_terminal else Console(width=150, markup=False, stderr=stderr)
