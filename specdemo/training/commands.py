"""Commands that make a draft model: write text with the target, distil, measure. A typer sub-application."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn, track

from specdemo.training import generate as generation
from specdemo.training import measure as measuring
from specdemo.training.dataset import Dataset
from specdemo.training.distill import Recipe, Report, Trainer
from specdemo.training.student import Student, choose_vocabulary, export, make_config, project_embedding
from specdemo.training.target import Target, fast_dtype, load_target

app = typer.Typer(no_args_is_help=True, help="Train a draft model for a target.")
console = Console()

TargetOption = Annotated[str, typer.Option("--target", help="Checkpoint folder of the target.")]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of training shards.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, ...")]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
DEFAULT_DATA = Path("training-data")


@app.command()
def generate(
    target: TargetOption,
    data: DataOption = DEFAULT_DATA,
    shards: Annotated[int, typer.Option(help="Shards the folder should hold; existing ones are kept.")] = 60,
    rows: Annotated[int, typer.Option(help="Conversations a shard, generated side by side.")] = 128,
    length: Annotated[int, typer.Option(help="Tokens a conversation.")] = 320,
    seed: SeedOption = 1,
    device: DeviceOption = "cpu",
) -> None:
    """Let the target write chat text, its predictions saved with it. Can be stopped and started again at any time."""
    teacher = load_target(target, device)
    model = teacher.lean(device, fast_dtype(device))
    new = generation.generate(model, teacher.tokenizer, data, shards, rows, length, seed)
    for file in track(new, "Generating", total=shards, console=console):
        console.print(f"wrote {file}")


@app.command()
def label(
    text: Annotated[Path, typer.Argument(help=".npz with ids and role [rows, length], role 1 where the target spoke.")],
    target: TargetOption,
    data: DataOption = DEFAULT_DATA,
    device: DeviceOption = "cpu",
) -> None:
    """Turn chat text that exists already into training shards, by one pass of the target over it."""
    teacher = load_target(target, device)
    model = teacher.lean(device, fast_dtype(device))
    with np.load(text) as arrays:
        ids, role = torch.tensor(arrays["ids"].astype(np.int64)), torch.tensor(arrays["role"])
    for index, at in enumerate(track(range(0, len(ids), 256), "Labelling", console=console)):
        file = data / f"labelled-{text.stem}-{index:04d}.npz"
        if not file.exists():
            generation.label(model, ids[at : at + 256], role[at : at + 256]).save(file)


@app.command()
def draft(
    target: TargetOption,
    data: DataOption = DEFAULT_DATA,
    out: Annotated[Path, typer.Option(help="Folder of the exported draft.")] = Path("draft"),
    work: Annotated[Path, typer.Option(help="Folder of the run's state.")] = Path("training-run"),
    resume: Annotated[bool, typer.Option(help="Continue the run in --work.")] = False,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 10_000,
    minutes: Annotated[float, typer.Option(help="Time limit; the schedule then ends in time.")] = float("inf"),
    tokens: Annotated[int, typer.Option(help="Tokens a step.")] = 2560,
    shards: Annotated[int, typer.Option(help="Shards to generate first if --data is empty.")] = 60,
    vocab: Annotated[int, typer.Option(help="Tokens the draft can propose.")] = 8192,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 288,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 3,
    mlp: Annotated[int, typer.Option(help="Width inside the MLP.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads of 64.")] = 4,
    kv_heads: Annotated[int, typer.Option(help="Key/value heads.")] = 2,
    muon_rate: Annotated[float, typer.Option(help="Peak learning rate of the blocks.")] = Recipe.muon_rate,
    adam_rate: Annotated[float, typer.Option(help="Peak learning rate of the embedding.")] = Recipe.adam_rate,
    target_hash: Annotated[str, typer.Option(help="sha256 to record if the folder is a converted copy.")] = "",
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
) -> None:
    """Distil a draft model from the target's text and export it."""
    if not list(data.glob("*.npz")):
        generate(target, data, shards, device=device)
    torch.manual_seed(seed)
    teacher, dataset = load_target(target, device), Dataset(data)
    recipe = Recipe(steps, tokens, time_limit=60 * minutes, seed=seed, muon_rate=muon_rate, adam_rate=adam_rate)
    student = _new_student(teacher, dataset, work if resume else None, vocab, width, layers, mlp, heads, kv_heads)
    trainer = Trainer(student.to(device), dataset, recipe, work, fast_dtype(device))
    if resume and trainer.resume():
        console.print(f"Resumed at step {trainer.step}.")
    console.print(f"{sum(p.numel() for p in student.parameters()) / 1e6:.1f} M weights; data: {dataset.facts()}")
    _train(trainer, out, target_hash or teacher.sha256)


def _new_student(teacher: Target, dataset: Dataset, run: Path | None, vocab: int, *shape: int) -> Student:
    """A student that starts from the target's embedding; a resumed `run` keeps its vocabulary."""
    size = teacher.weights["model.embed_tokens.weight"].shape[0]
    state = run / "state.pt" if run else None
    if state and state.exists():
        vocab_ids = torch.load(state, weights_only=True)["vocab_ids"]
    else:
        vocab_ids = choose_vocabulary(dataset.counts(size), teacher.tokenizer, vocab)
    config = make_config(teacher.config, len(vocab_ids), *shape)
    student = Student(config, vocab_ids, size)
    with torch.no_grad():
        student.embed_tokens.weight.copy_(project_embedding(teacher, vocab_ids, config.hidden_size))
    return student


def _train(trainer: Trainer, out: Path, target_sha256: str) -> None:
    """Run the trainer under a progress bar; export whenever validation is better than ever before."""
    best = 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Distilling", total=1.0, completed=trainer.progress)

        def report(now: Report) -> None:
            nonlocal best
            progress.update(task, completed=now.progress, description=f"loss {now.loss:.3f}")
            if now.match is None:
                return
            console.print(
                f"step {now.step} ({now.progress:.0%}): loss {now.loss:.3f}, match {now.match:.3f}, "
                f"alpha {now.alpha:.3f}, {now.tokens_per_second:.0f} tokens/s, {trainer.data.facts()['rows']} rows"
            )
            if now.match > best:
                best = now.match
                export(trainer.student, out, _facts(trainer, now, target_sha256))

        trainer.run(report)


def _facts(trainer: Trainer, now: Report, target_sha256: str) -> dict:
    """What config.json records about where the weights come from."""
    return {
        "target_sha256": target_sha256,
        "data": trainer.data.facts(),
        "recipe": {name: value for name, value in asdict(trainer.recipe).items() if value != float("inf")},
        "trained": {"steps": now.step, "seconds": round(trainer.seconds)},
        "validation": {"greedy_match": round(now.match or 0, 4), "expected_alpha": round(now.alpha or 0, 4)},
    }


@app.command()
def measure(
    folder: Annotated[Path, typer.Argument(help="Exported draft folder.")],
    target: TargetOption,
    prompts: Annotated[Path, typer.Option(help=".jsonl with category and prompt.")] = Path("assets/prompts.jsonl"),
    answers: Annotated[Path, typer.Option(help="Recorded answers; written if missing.")] = Path("answers.npz"),
    tokens: Annotated[int, typer.Option(help="Longest answer.")] = 100,
    card: Annotated[Path | None, typer.Option(help="README.md whose results section to replace.")] = None,
) -> None:
    """Measure acceptance on held-out prompts, without the decoder: alpha and tokens per pass by category."""
    if not answers.exists():
        teacher = load_target(target, "cpu")
        with console.status("The target answers the prompts (once)"):
            recorded = measuring.record_answers(teacher.lean("cpu", torch.float32), teacher.tokenizer, prompts, tokens)
        measuring.save_answers(recorded, answers)
    result = measuring.table(measuring.measure(measuring.Draft(folder), measuring.load_answers(answers)))
    console.print(result)
    if card:
        measuring.write_card(card, result)
