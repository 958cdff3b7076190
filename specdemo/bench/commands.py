"""`specdemo bench` and `specdemo tune`. Heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specdemo.cli_options import (
    Confidence,
    Device,
    Draft,
    Dtype,
    MaxTokens,
    Pair,
    Seed,
    Target,
    Temperature,
    explained,
    gamma_settings,
    load,
)
from specdemo.errors import UserError

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts.jsonl"
_ALL: list[str] = []
_GAMMAS = ["auto"]
_TUNED_GAMMAS = (1, 2, 3, 4, 6, 8, None)
_TUNED_CONFIDENCES = (0.0, 0.2)

Prompts = Annotated[Path, typer.Option(help='A .jsonl of {"category", "prompt"} lines; six shipped categories.')]
Categories = Annotated[str, typer.Option(help="Some categories only, separated by commas.")]
Drafters = Annotated[list[str], typer.Option("--drafter", help="One or more; all that the pair can use by default.")]
PerCategory = Annotated[int, typer.Option(help="Prompts of each category; 0 takes all of them.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often everything is run, in turn.")]
Json = Annotated[Path | None, typer.Option(help="Write the results to this file.")]


def bench(
    pair: Pair = None,
    drafter: Drafters = _ALL,
    gamma: Annotated[list[str], typer.Option(help="Drafts a round, or auto; may be given more than once.")] = _GAMMAS,
    confidence: Confidence = 0.2,
    temperature: Temperature = 0.0,
    categories: Categories = "",
    prompts: Prompts = PROMPTS,
    per_category: PerCategory = 0,
    max_tokens: MaxTokens = 100,
    repeats: Repeats = 3,
    seed: Seed = 0,
    batch: Annotated[int, typer.Option(help="Also run this many texts at once.")] = 1,
    peers: Annotated[bool, typer.Option(help="Also run transformers' decoders.")] = False,
    page: Annotated[bool, typer.Option(help="Also run both lanes side by side on a page that nobody sees.")] = False,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Write an HTML page with charts to this file.")] = None,
    synthetic: Annotated[bool, typer.Option(help="Random weights instead of models: speeds, not texts.")] = False,
    size: Annotated[str, typer.Option(help="Size of the synthetic target: 135m, 1.7b, 8b, tiny.")] = "1.7b",
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Compare decoders on the same prompts, in turn: speed, acceptance, latency, and what the theory predicts."""
    console = _wide_console()
    with explained():
        if synthetic:
            _synthetic(size, device, dtype, max_tokens, json, console)
            return
        from specdemo.bench import contenders as make
        from specdemo.bench.page import to_html
        from specdemo.bench.report import ALL, speedup_table, tables
        from specdemo.bench.suite import apart, run_batches

        chosen = _chosen(prompts, categories, per_category)
        gammas = [gamma_settings(text).get("gamma") for text in gamma]
        loaded = apart(load, pair, target, draft, device, dtype, console)
        ours = [make.speculative(loaded, name, g, confidence) for name in drafter or _usable(loaded) for g in gammas]
        runners = [make.Ours("baseline", loaded), *ours]
        if page:
            runners += [
                make.OnThePage("baseline, on the page", "baseline", ours[-1]),
                make.OnThePage(f"{ours[-1].name}, on the page", "speculative", ours[-1]),
            ]
        if peers:
            from specdemo.bench.peers import peers as others

            runners += apart(others, loaded, next((g for g in gammas if g), 4))
        settings = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        report = _run(loaded, runners, chosen, settings, repeats, console)
        if batch > 1:
            found = run_batches(loaded, chosen, settings, batch, next((g for g in gammas if g), 4), repeats)
            report = report.model_copy(update={"batches": found})
        for category in (*report.categories, ALL):
            console.print(*tables(report, category))
        console.print(speedup_table(report))
        _print_facts(report, console)
        if json:
            json.write_text(report.model_dump_json(indent=1), encoding="utf-8")
        if plot:
            plot.write_text(to_html(report), encoding="utf-8")


def tune(
    pair: Pair = None,
    prompts: Prompts = PROMPTS,
    categories: Categories = "",
    per_category: PerCategory = 2,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 64,
    repeats: Repeats = 1,
    seed: Seed = 0,
    json: Json = None,
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Measure every drafter with every gamma on your prompts, and recommend one."""
    console = _wide_console()
    with explained():
        from specdemo.bench import contenders as make
        from specdemo.bench.report import ALL, speedup_table
        from specdemo.bench.suite import apart
        from specdemo.drafters import DRAFTERS

        chosen = _chosen(prompts, categories, per_category)
        loaded = apart(load, pair, target, draft, device, dtype, console)
        runners = [make.Ours("baseline", loaded)]
        for name in _usable(loaded):
            doubts = _TUNED_CONFIDENCES if DRAFTERS[name].needs_draft else _TUNED_CONFIDENCES[:1]
            runners += [make.speculative(loaded, name, g, doubt) for g in _TUNED_GAMMAS for doubt in doubts]
        settings = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        report = _run(loaded, runners, chosen, settings, repeats, console)
        console.print(speedup_table(report))
        names = [name for name in report.contenders if name != "baseline"]
        best = report.best(ALL, names)
        gain = report.row(best).figures.speedup
        if gain <= 1:
            console.print("Recommended: plain decoding. No drafter was faster on these prompts.")
        else:
            console.print(f"Recommended: {best} ({gain:.2f} x over all categories).", highlight=False)
        for category in report.categories:
            own = report.best(category, names)
            gain = report.row(own, category).figures.speedup
            console.print(f"  {category}: {own} ({gain:.2f} x)", highlight=False)
        if json:
            json.write_text(report.model_dump_json(indent=1), encoding="utf-8")


def _wide_console() -> Console:
    """The terminal, or 150 columns where output goes to a file: tables should not be folded there."""
    console = Console()
    return console if console.is_terminal else Console(width=150)


def _chosen(file: Path, categories: str, per_category: int) -> list[tuple[str, str]]:
    from specdemo.prompts import read_prompts

    prompts = read_prompts(file)
    wanted = [name.strip() for name in categories.split(",") if name.strip()]
    known = list(dict.fromkeys(category for category, _ in prompts))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError(f"There is no category {', '.join(unknown)} in {file}; it has {', '.join(known)}.")
    counts: dict[str, int] = {}
    chosen = []
    for category, prompt in prompts:
        counts[category] = counts.get(category, 0) + 1
        if (not wanted or category in wanted) and (not per_category or counts[category] <= per_category):
            chosen.append((category, prompt))
    return chosen


def _usable(loaded) -> list[str]:
    """Drafters that this pair has all they need for."""
    from specdemo.drafters import DRAFTERS

    return [name for name, kind in DRAFTERS.items() if kind.usable(loaded.draft, loaded.store)]


def _run(loaded, runners, prompts, settings, repeats, console: Console):
    from rich.progress import Progress

    from specdemo.bench.suite import Suite

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Running", total=1.0)
        say = lambda message, fraction: progress.update(task, description=message, completed=fraction)  # noqa: E731
        return Suite(loaded, runners, prompts, settings, repeats, say).run()


def _print_facts(report, console: Console) -> None:
    if report.roofline:
        roof = report.roofline
        console.print(
            f"Roofline: a token reads {roof.bytes_per_token / 1e6:.0f} MB; this machine reads "
            f"{roof.bandwidth / 1e9:.1f} GB/s; the baseline reached {roof.fraction:.0%} of that.",
            highlight=False,
        )
    for row in report.batches:
        console.print(
            f"Batch of {row.batch}, {row.category}: {row.plain_rate:.0f} -> {row.speculative_rate:.0f} tokens/s "
            f"({row.speedup:.2f} x, {row.tokens_per_pass:.2f} tokens a pass and row, alpha {row.alpha:.2f})",
            highlight=False,
        )
    names = [name for name in report.contenders[1:] if not name.startswith("transformers") and "page" not in name]
    best = {category: report.best(category, names) for category in report.categories} if names else {}
    for category, name in best.items():
        figures = report.row(name, category).figures
        console.print(f"Best in {category}: {name} ({figures.speedup:.2f} x)", highlight=False)
    if best:
        mean = sum(report.row(name, category).figures.speedup for category, name in best.items()) / len(best)
        console.print(f"Best drafter of each category, mean: {mean:.2f} x", highlight=False)
    machine = report.machine
    console.print(
        f"{machine.processor}, {machine.threads} threads, {report.target.dtype}, "
        + ", ".join(f"{name} {version}" for name, version in machine.packages.items())
        + f"; peak memory {report.peak_memory / 1e9:.2f} GB",
        highlight=False,
    )


def _synthetic(
    size: str, device: str | None, dtype: str | None, tokens: int, json: Path | None, console: Console
) -> None:
    from specdemo.bench import synthetic
    from specdemo.models.device import choose_device, choose_dtype, use_cpu_quota

    if size not in synthetic.SIZES or size == "draft":
        raise UserError(f"There is no size {size!r}; choose one of: 135m, 1.7b, 8b, tiny.")
    use_cpu_quota()
    chosen = choose_device(device)
    result = synthetic.run(size, chosen, choose_dtype(chosen, dtype), tokens)
    roof = result.roofline
    console.print(
        f"SYNTHETIC: {result.target.name}, {result.target.parameters / 1e9:.2f} B random weights, "
        f"{result.target.dtype}, {result.machine.processor}\n"
        f"plain: {result.plain_rate:.1f} tokens/s, {1e3 * result.step:.2f} ms a step, {roof.fraction:.0%} of the "
        f"roofline ({roof.bandwidth / 1e9:.0f} GB/s)\n"
        "T(k)/T(1): " + ", ".join(f"{k}: {ratio:.2f}" for k, ratio in result.passes.items()) + "\n"
        f"speculative, gamma {result.gamma}, acceptance fixed at {result.alpha}: "
        f"{result.speculative_rate:.1f} tokens/s, {result.speedup:.2f} x, "
        f"{result.tokens_per_pass:.2f} tokens a pass, c = {result.c:.3f}",
        highlight=False,
    )
    if json:
        json.write_text(result.model_dump_json(indent=1), encoding="utf-8")
