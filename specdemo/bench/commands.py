"""`specdemo bench` and `specdemo tune`. Heavy imports wait until a command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdemo.cli_options import (
    Confidence,
    Depth,
    Device,
    Draft,
    Dtype,
    Head,
    MaxTokens,
    Nodes,
    Pair,
    Seed,
    Target,
    Temperature,
    explained,
    gamma_settings,
    load,
    named,
    wide_console,
)
from specdemo.errors import UserError
from specdemo.journal import place
from specdemo.longwork import resumable, watched
from specdemo.outputs import require_writable
from specdemo.prompts import SHIPPED

if TYPE_CHECKING:
    from pydantic import BaseModel

    from specdemo.bench.plan import Plan
    from specdemo.bench.report import Report

_ALL: list[str] = []
_GAMMAS = ["auto"]
_TUNED_GAMMAS = (1, 2, 3, 4, 6, 8, None)
_TUNED_CONFIDENCES = (0.0, 0.2)

Prompts = Annotated[Path, typer.Option(help='A .jsonl of {"category", "prompt"} lines; six shipped categories.')]
Categories = Annotated[list[str], typer.Option(callback=named, help="Some categories only, separated by commas.")]
Drafters = Annotated[list[str], typer.Option("--drafter", help="One or more; all that the pair can use by default.")]
Gammas = Annotated[list[str], typer.Option(help="Drafts a round, or auto; may be given more than once.")]
PerCategory = Annotated[int, typer.Option(min=0, max=1_000_000, help="Prompts of each category; 0 takes all of them.")]
Repeats = Annotated[int, typer.Option(min=1, max=1_000_000, help="How often everything is run, in turn.")]
JournalFile = Annotated[
    Path | None,
    typer.Option("--work", help="Keep every run here as soon as it is made; beside --json or in the cache by default."),
]
Resume = Annotated[bool, typer.Option(help="Go on where the runs in --work end.")]
Json = Annotated[Path | None, typer.Option(help="Write the results to this file.")]


def bench(
    pair: Pair = None,
    drafter: Drafters = _ALL,
    gamma: Gammas = _GAMMAS,
    confidence: Confidence = 0.2,
    depth: Depth = 6,
    nodes: Nodes = 16,
    temperature: Temperature = 0.0,
    categories: Categories = _ALL,
    prompts: Prompts = SHIPPED,
    per_category: PerCategory = 0,
    max_tokens: MaxTokens = 100,
    repeats: Repeats = 3,
    seed: Seed = 0,
    batch: Annotated[int, typer.Option(min=1, help="Also run this many texts at once, gamma 4 or --gamma's.")] = 1,
    peers: Annotated[bool, typer.Option(help="Also run transformers' decoders.")] = False,
    page: Annotated[bool, typer.Option(help="Also run both lanes side by side on a page that nobody sees.")] = False,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Write an HTML page with charts to this file.")] = None,
    work: JournalFile = None,
    resume: Resume = False,
    synthetic: Annotated[
        bool, typer.Option(help="Random weights: speeds, not texts. Only --size, --device, --dtype, --json count.")
    ] = False,
    size: Annotated[str, typer.Option(help="Size of the synthetic target: 135m, 1.7b, 8b, tiny.")] = "1.7b",
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Compare decoders on the same prompts, in turn: speed, acceptance, latency, and what the theory predicts."""
    console = wide_console()
    with explained():
        from specdemo.bench.plan import Plan, choose_prompts

        require_writable(json, plot, work, inputs=[prompts])
        if synthetic:
            with resumable(console, "Nothing of it is kept: it takes a minute or two."):
                _synthetic(size, device, dtype, json, console)
            return
        plan = Plan(
            choose_prompts(prompts, categories, per_category),
            drafter,
            [gamma_settings(text).get("gamma") for text in gamma],
            [confidence],
            {"depth": depth, "nodes": nodes, "temperature": temperature, "max_tokens": max_tokens, "seed": seed},
            repeats,
            batch,
            peers,
            page,
        )

        def tell(report: Report) -> None:
            if json:
                _save(report, json)
            if plot:
                from specdemo.bench.page import to_html

                plot.write_text(to_html(report), encoding="utf-8")
            _show(report, console)

        models = (pair, target, draft, head, device, dtype)
        _run(plan, models, place(work, json, "bench"), resume, console, tell)


def tune(
    pair: Pair = None,
    prompts: Prompts = SHIPPED,
    categories: Categories = _ALL,
    per_category: PerCategory = 2,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 64,
    repeats: Repeats = 1,
    seed: Seed = 0,
    json: Json = None,
    work: JournalFile = None,
    resume: Resume = False,
    target: Target = None,
    draft: Draft = None,
    head: Head = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Measure every drafter with every gamma on your prompts, and recommend one."""
    console = wide_console()
    with explained():
        from specdemo.bench.plan import Plan, choose_prompts
        from specdemo.bench.report import ALL
        from specdemo.bench.tables import speedup_table

        require_writable(json, work, inputs=[prompts])
        settings = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        chosen = choose_prompts(prompts, categories, per_category)
        plan = Plan(chosen, [], _TUNED_GAMMAS, _TUNED_CONFIDENCES, settings, repeats)

        def tell(report: Report) -> None:
            if json:
                _save(report, json)
            console.print(speedup_table(report))
            for line in report.cautions():
                console.print(line, highlight=False)
            console.print(f"Recommended: {_recommended(report, ALL)}", highlight=False)
            for category in report.categories:
                console.print(f"  {category}: {_recommended(report, category)}", highlight=False)

        models = (pair, target, draft, head, device, dtype)
        _run(plan, models, place(work, json, "tune"), resume, console, tell)


def _save(result: BaseModel, file: Path) -> None:
    file.write_text(result.model_dump_json(indent=1), encoding="utf-8")


def _recommended(report: Report, category: str) -> str:
    best = report.best(category)
    gain = best and report.row(best, category).figures.speedup
    if not gain:
        return "nothing; the answers were too short to compare"
    return f"{best} ({gain:.2f} x)" if gain > 1 else "plain decoding; no drafter was faster"


def _run(plan: Plan, models: tuple, file: Path, resume: bool, console: Console, tell: Callable[[Report], None]) -> None:
    """Run the plan and tell of its report. Where the run was stopped, that is of what there is, and the command ends
    with how to go on."""
    from specdemo.bench.suite import apart

    ready = apart(load, *models, console, plan.drafters)
    with resumable(console, f"The runs are in {file}; the same command with --resume goes on from there."):
        with watched(console) as work:
            report = plan.run(ready, work, file, resume)
        if report:
            tell(report)
        else:
            console.print("Nothing was finished that could be compared.")
        work.check()


def _show(report: Report, console: Console) -> None:
    from specdemo.bench.report import ALL
    from specdemo.bench.tables import speedup_table, tables

    for category in (*report.categories, ALL):
        console.print(*tables(report, category))
    console.print(speedup_table(report))
    for line in report.facts():
        console.print(line, highlight=False)


def _synthetic(size: str, device: str | None, dtype: str | None, json: Path | None, console: Console) -> None:
    from specdemo.bench import synthetic
    from specdemo.models.device import choose_device, choose_dtype, use_cpu_quota

    if size not in synthetic.TARGETS:
        raise UserError(f"There is no size {size!r}; choose one of: {', '.join(synthetic.TARGETS)}.")
    use_cpu_quota()
    chosen = choose_device(device)
    with watched(console) as say:
        result = synthetic.run(size, chosen, choose_dtype(chosen, dtype), say=say)
    console.print(result.summary(), highlight=False)
    if json:
        _save(result, json)
