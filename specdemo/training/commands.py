"""`specdemo train ...`: commands that make draft models and heads. Heavy imports wait until a command runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specdemo.cli_options import explained, named
from specdemo.longwork import resumable
from specdemo.outputs import require_writable
from specdemo.prompts import SHIPPED
from specdemo.settings import MAX_TOKENS

app = typer.Typer(no_args_is_help=True, help="Train a draft model or a head for a target.")

Target = Annotated[str, typer.Option(callback=named, help="Folder of the target; the built-in one by default.")]
Data = Annotated[Path, typer.Option(help="Folder of training shards.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Shards = Annotated[
    int, typer.Option(min=0, max=10_000, help="Shards of this seed that --data should hold; existing ones are kept.")
]
TextSeed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the text: other seeds add other shards.")]

Out = Annotated[Path, typer.Option(help="Folder of what is exported.")]
Work = Annotated[Path, typer.Option(help="Folder of the run's state.")]
Resume = Annotated[bool, typer.Option(help="Continue the run in --work.")]
Steps = Annotated[int, typer.Option(min=1, help="Optimiser steps at most.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="Time limit; the schedule then ends in time.")]
TokensAStep = Annotated[int, typer.Option(min=1, help="Tokens a step.")]
MuonRate = Annotated[float, typer.Option(help="Peak learning rate of the matrices.")]
AdamRate = Annotated[float, typer.Option(help="Peak learning rate of output layer, norms and biases.")]
Vocab = Annotated[int, typer.Option(min=64, max=2**20, help="Tokens that can be proposed.")]
Cooldown = Annotated[float, typer.Option(min=0, max=1, help="Share of the run in which the learning rate falls to 0.")]
TrainingSeed = Annotated[int, typer.Option(help="Seed of the training.")]

_stoppable = resumable(Console(), "What was finished is kept: the same command goes on from there.")
_with_resume = resumable(Console(), "What was finished is kept: the same command with --resume goes on from there.")

_TARGET = "built-in:target"
_DATA = Path("training-data")


def _prepare(
    device: str, *files: Path | None, folders: Sequence[Path] = (), inputs: Sequence[Path | None] = ()
) -> None:
    """What a command asks of this machine, checked before anything long begins. Raises UserError."""
    from specdemo.models.device import choose_device, use_cpu_quota

    choose_device(device)
    require_writable(*files, folders=folders, inputs=inputs)
    use_cpu_quota()


@app.command()
@explained()
@_stoppable
def generate(
    target: Target = _TARGET,
    data: Data = _DATA,
    shards: Shards = 60,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Conversations a shard, generated side by side.")] = 128,
    length: Annotated[int, typer.Option(min=64, max=100_000, help="Tokens a conversation.")] = 320,
    seed: TextSeed = 1,
    asked: Annotated[bool, typer.Option(help="Whole questions instead of invented user turns.")] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="Questions of your own: a .jsonl of category and prompt.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Let the target write chat text, its predictions saved with it. Can be stopped and started again at any time."""
    from specdemo.training import jobs

    _prepare(device, folders=[data])
    jobs.generate(target, data, shards, rows, length, seed, device, asked, prompts)


@app.command()
@explained()
@_stoppable
def label(
    text: Annotated[Path, typer.Argument(help=".npz with ids and role [rows, length], role 1 where the target spoke.")],
    target: Target = _TARGET,
    data: Data = _DATA,
    device: Device = "cpu",
) -> None:
    """Turn chat text that exists already into training shards, by one pass of the target over it."""
    from specdemo.training import jobs

    _prepare(device, folders=[data])
    jobs.label(text, target, data, device)


@app.command()
@explained()
@_with_resume
def draft(
    target: Target = _TARGET,
    data: Data = _DATA,
    out: Out = Path("draft"),
    work: Work = Path("training-run"),
    resume: Resume = False,
    start: Annotated[Path | None, typer.Option(help="Start from the weights of another run's folder.")] = None,
    steps: Steps = 10_000,
    minutes: Minutes = float("inf"),
    tokens: TokensAStep = 2560,
    vocab: Vocab = 8192,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 288,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 3,
    mlp: Annotated[int, typer.Option(help="Width inside the MLP.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads of 64.")] = 4,
    kv_heads: Annotated[int, typer.Option(help="Key/value heads.")] = 2,
    muon_rate: Annotated[float, typer.Option(help="Peak learning rate of the blocks.")] = 6e-3,
    adam_rate: Annotated[float, typer.Option(help="Peak learning rate of the embedding.")] = 5e-3,
    cooldown: Cooldown = 0.35,
    first_choice: Annotated[float, typer.Option(help="Extra weight of the target's first choice.")] = 0.5,
    shards: Shards = 60,
    text_seed: TextSeed = 1,
    seed: TrainingSeed = 0,
    device: Device = "cpu",
) -> None:
    """Distil a draft model from the target's text and export it; text that is missing is written first."""
    from specdemo.training import jobs
    from specdemo.training.distill import Recipe
    from specdemo.training.student import Shape

    recipe = Recipe(
        steps,
        tokens,
        muon_rate,
        adam_rate,
        cooldown=cooldown,
        first_choice=first_choice,
        seed=seed,
        time_limit=60 * minutes,
    )
    shape = Shape(vocab, width, layers, mlp, heads, kv_heads)
    _prepare(device, folders=[data, out, work])
    if start:
        jobs.check_start(start, shape)
    jobs.generate(target, data, shards, seed=text_seed, device=device)
    jobs.draft(target, data, out, work, resume, start, recipe, shape, device)


@app.command()
@explained()
@_with_resume
def eagle(
    target: Target = _TARGET,
    data: Data = _DATA,
    out: Out = Path("eagle"),
    work: Work = Path("eagle-run"),
    resume: Resume = False,
    minutes: Minutes = 60,
    steps: Steps = 100_000,
    tokens: TokensAStep = 2048,
    vocab: Vocab = 9728,
    mlp: Annotated[int, typer.Option(min=0, max=65_536, help="Width inside the MLP; 0 is the target's.")] = 0,
    depths: Annotated[int, typer.Option(min=1, max=8, help="Steps of its own that the head learns to continue.")] = 3,
    deepen: Annotated[float, typer.Option(help="Share of the run after which it learns more than one.")] = 0.27,
    muon_rate: MuonRate = 4e-3,
    adam_rate: AdamRate = 1e-3,
    cooldown: Cooldown = 0.5,
    shards: Shards = 30,
    text_seed: TextSeed = 1,
    seed: TrainingSeed = 0,
    device: Device = "cpu",
) -> None:
    """Train an EAGLE head for a target and export it; text and states that are missing are made first."""
    from specdemo.training import head_jobs, jobs
    from specdemo.training.distill import Recipe

    recipe = Recipe(
        steps,
        tokens,
        muon_rate,
        adam_rate,
        cooldown=cooldown,
        depths=depths,
        deepen=deepen,
        seed=seed,
        time_limit=60 * minutes,
    )
    _prepare(device, folders=[data, out, work])
    jobs.generate(target, data, shards, seed=text_seed, device=device)
    head_jobs.train_head(head_jobs.eagle(mlp), target, data, out, work, resume, vocab, recipe, device)


@app.command()
@explained()
@_with_resume
def medusa(
    target: Target = _TARGET,
    data: Data = _DATA,
    out: Out = Path("medusa"),
    work: Work = Path("medusa-run"),
    resume: Resume = False,
    minutes: Minutes = 30,
    steps: Steps = 100_000,
    tokens: TokensAStep = 2048,
    vocab: Vocab = 9728,
    heads: Annotated[int, typer.Option(min=1, max=8, help="Heads: tokens that are guessed at once.")] = 4,
    blocks: Annotated[int, typer.Option(min=1, max=8, help="Residual blocks a head.")] = 1,
    muon_rate: MuonRate = 4e-3,
    adam_rate: AdamRate = 1e-3,
    cooldown: Cooldown = 0.5,
    shards: Shards = 30,
    text_seed: TextSeed = 1,
    seed: TrainingSeed = 0,
    device: Device = "cpu",
) -> None:
    """Train Medusa heads for a target and export them; text and states that are missing are made first."""
    from specdemo.training import head_jobs, jobs
    from specdemo.training.distill import Recipe

    recipe = Recipe(
        steps, tokens, muon_rate, adam_rate, cooldown=cooldown, depths=heads, seed=seed, time_limit=60 * minutes
    )
    _prepare(device, folders=[data, out, work])
    jobs.generate(target, data, shards, seed=text_seed, device=device)
    head_jobs.train_head(head_jobs.medusa(heads, blocks), target, data, out, work, resume, vocab, recipe, device)


@app.command()
@explained()
@resumable(Console(), "Answers are kept once all of them are there: start the command again.")
def measure(
    folder: Annotated[Path, typer.Argument(help="Exported draft folder.")] = SHIPPED.parent / "draft",
    target: Target = _TARGET,
    prompts: Annotated[Path, typer.Option(help=".jsonl with category and prompt.")] = SHIPPED,
    answers: Annotated[Path, typer.Option(help="Recorded answers; written if missing.")] = Path("answers.npz"),
    tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Longest answer.")] = 100,
    card: Annotated[Path | None, typer.Option(help="README.md whose results section to replace.")] = None,
) -> None:
    """Measure acceptance on held-out prompts, without the decoder: alpha and tokens per pass by category."""
    from specdemo.training import jobs

    _prepare("cpu", answers, card, inputs=[prompts])
    jobs.measure(folder, target, prompts, answers, tokens, card)
