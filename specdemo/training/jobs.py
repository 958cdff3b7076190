"""What the training commands do: write text with the target, label text, distil a draft, measure it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import LlamaConfig

from specdemo.errors import UserError
from specdemo.longwork import watched
from specdemo.metrics import shown
from specdemo.models.tokens import fingerprint
from specdemo.prompts import read_prompts
from specdemo.training import generate as generation
from specdemo.training import measure as measuring
from specdemo.training.dataset import Dataset, Learner
from specdemo.training.distill import Recipe, Report, Trainer
from specdemo.training.export import export
from specdemo.training.questions import Composed, Listed
from specdemo.training.shards import USER, read_arrays
from specdemo.training.student import (
    Shape,
    Student,
    carry_embedding,
    choose_vocabulary,
    make_config,
    project_embedding,
)
from specdemo.training.target import Target, fast_dtype, load_target

console = Console()


def generate(
    target: str,
    data: Path,
    shards: int,
    rows: int = 128,
    length: int = 320,
    seed: int = 1,
    device: str = "cpu",
    asked: bool = False,
    prompts: Path | None = None,
) -> None:
    """Fill `data` up to `shards` shards, of this seed, of text that the target writes.

    Users' turns are invented by the target, put together here (`asked`), or those of a file of prompts.
    """
    questions = Listed(read_prompts(prompts)) if prompts else None
    if generation.is_complete(data, shards, seed, asked or questions is not None):
        return

    def check(config, tokenizer) -> None:
        forced = len(generation.Template.of(tokenizer).start)
        if min(length, config.max_position_embeddings) <= forced:
            raise UserError(f"{length} tokens a conversation are too few: this target's template begins with {forced}.")

    teacher = load_target(target, device, check)
    claim(data, teacher)
    length = min(length, teacher.config.max_position_embeddings)
    model = teacher.lean(device, fast_dtype(device))
    if asked and not questions:
        questions = Composed(generation.paragraphs(data, teacher.tokenizer))
    with watched(console) as say:
        for file in generation.generate(model, teacher.tokenizer, data, shards, rows, length, seed, questions, say):
            console.print(f"wrote {file}")


def claim(data: Path, teacher: Target) -> None:
    """Note whose text a folder holds. Raises UserError where it is another target's: what is trained on that would
    carry this target's name."""
    note = data / "target.json"
    if note.exists():
        if json.loads(note.read_text(encoding="utf-8"))["target_sha256"] != teacher.sha256:
            raise UserError(f"{data} holds text of another target. Choose another folder with --data.")
        return
    data.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"target_sha256": teacher.sha256}) + "\n", encoding="utf-8")


def label(text: Path, target: str, data: Path, device: str) -> None:
    """Turn an .npz of ids and role [rows, length], and perhaps temperature [rows], into shards of 256 rows each.

    Text whose temperatures are known keeps its file's name as its source; other text counts as "labelled".
    """
    ids, role, temperature = _read_text(text)

    def check(config, _tokenizer) -> None:
        if int(ids.max()) >= config.vocab_size:
            raise UserError(f"{text} has tokens that the target does not know: it was written by another one.")
        if ids.shape[1] > config.max_position_embeddings:
            raise UserError(
                f"{text} has rows of {ids.shape[1]} tokens; the target reads at most {config.max_position_embeddings}."
            )

    teacher = load_target(target, device, check)
    claim(data, teacher)
    model = teacher.lean(device, fast_dtype(device))
    source = text.stem if temperature is not None else f"labelled-{text.stem}"
    starts = range(0, len(ids), 256)
    with watched(console) as say:
        for index, at in enumerate(starts):
            file = data / f"{source}-{index:04d}.npz"
            if not file.exists():
                inside = generation.within(say, f"labelling shard {index + 1} of {len(starts)}", index, len(starts))
                shard = generation.label(model, ids[at : at + 256], role[at : at + 256], inside)
                if temperature is not None:
                    shard = replace(shard, temperature=temperature[at : at + 256])
                shard.save(file)


def _read_text(file: Path) -> tuple[Tensor, Tensor, np.ndarray | None]:
    """ids and role [rows, length], and temperature [rows] where it is known. Raises UserError for any other file."""
    arrays = read_arrays(file)
    ids, role, temperature = (arrays.get(name) for name in ("ids", "role", "temperature"))
    fits = (
        ids is not None
        and role is not None
        and ids.ndim == 2
        and ids.shape == role.shape
        and ids.size > 0
        and all(array.dtype.kind in "iu" and array.min() >= 0 for array in (ids, role))
        and role.max() <= USER
        and not role[:, 0].any()  # nothing predicts a first token
        and (temperature is None or (temperature.shape == ids.shape[:1] and temperature.dtype.kind in "fiu"))
    )
    if not fits:
        raise UserError(
            f"{file} holds no text to label: it should have ids and role [rows, length] of whole numbers, role 0 to 2 "
            "and 0 in the first column, and perhaps temperature [rows]."
        )
    return torch.tensor(ids.astype(np.int64)), torch.tensor(role.astype(np.uint8)), temperature


def draft(
    target: str,
    data: Path,
    out: Path,
    work: Path,
    resume: bool,
    start: Path | None,
    recipe: Recipe,
    shape: Shape,
    device: str,
) -> None:
    """Distil a draft of `shape` from the shards in `data`; export it to `out`.

    `work` holds the run's state. `start` is the folder of another run, of the same shape, whose weights this one begins
    with.
    """
    torch.manual_seed(recipe.seed)
    teacher, dataset = load_target(target, device), Dataset(data)
    if not dataset.train:
        raise UserError(f"{data} holds no training text yet. Write some first: python -m specdemo train generate")
    claim(data, teacher)
    resume = resume and (work / "state.pt").exists()
    student = _new_student(teacher, dataset, work if resume else None, start, shape)
    train(Trainer(student.to(device), dataset, recipe, work, fast_dtype(device)), teacher, out, resume)


def _new_student(teacher: Target, dataset: Dataset, resumed: Path | None, start: Path | None, shape: Shape) -> Student:
    """A resumed run's student, or a new one whose vocabulary is chosen from the text there is now.

    A new one begins with the weights of the run in `start`, its embedding carried over to the new vocabulary, or with
    the target's embedding alone.
    """
    size = teacher.weights["model.embed_tokens.weight"].shape[0]
    if resumed:
        return _load_student(resumed, size)
    vocab_ids = choose_vocabulary(dataset.counts(size), teacher.tokenizer, shape.vocab)
    earlier = _load_student(start, size) if start else None
    config = make_config(teacher.config, **vars(shape) | {"vocab": len(vocab_ids)})
    student = Student(config, vocab_ids, size)
    with torch.no_grad():
        if earlier is None:
            student.embed_tokens.weight.copy_(project_embedding(teacher, vocab_ids, config.hidden_size))
        else:
            kept = {name: value for name, value in earlier.state_dict().items() if not name.startswith("embed_tokens")}
            student.load_state_dict(kept, strict=False)
            student.embed_tokens.weight.copy_(carry_embedding(teacher, earlier, vocab_ids))
    return student


def check_start(run: Path, shape: Shape) -> None:
    """Raises UserError for a folder without a draft's run, or of one of another shape than `shape` but for its
    vocabulary."""
    try:
        config = torch.load(run / "state.pt", weights_only=True, mmap=True)["config"]
        found = {
            "width": config["hidden_size"],
            "layers": config["num_hidden_layers"],
            "mlp": config["intermediate_size"],
            "heads": config["num_attention_heads"],
            "kv_heads": config["num_key_value_heads"],
        }
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, UnpicklingError) as error:
        raise UserError(f"{run} holds no run of a draft model to start from: name a folder that --work was.") from error
    other = {name: value for name, value in found.items() if value != getattr(shape, name)}
    if other:
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in other.items())
        raise UserError(f"The run in {run} is of another shape than what is asked for. Add: {options}")


def _load_student(run: Path, target_vocab: int) -> Student:
    state = torch.load(run / "state.pt", weights_only=True)
    student = Student(LlamaConfig(**state["config"]), state["vocab_ids"].long(), target_vocab)
    student.load_state_dict(state["student"])
    return student


def train(
    trainer: Trainer,
    teacher: Target,
    out: Path,
    resume: bool,
    before_export: Callable[[Learner, Report], None] = lambda learner, now: None,
) -> None:
    """Run the trainer, from its last saved state on if asked to; export whenever validation is better than ever before,
    and in any case if nothing was exported to `out` yet."""
    if resume and trainer.resume():
        console.print(f"Resumed at step {trainer.step}.")
    weights = sum(p.numel() for p in trainer.student.parameters())
    console.print(f"{weights / 1e6:.1f} M weights; data: {trainer.data.facts()}")
    identity = {"target_sha256": teacher.sha256, "vocabulary_sha256": fingerprint(teacher.tokenizer)}

    def report(now: Report) -> None:
        if not now.matches:
            return
        matches = " ".join(f"{match:.3f}" for match in now.matches)
        console.print(
            f"step {now.step} ({now.progress:.0%}): loss {shown(now.loss, 3)}, match {matches}, alpha {now.alpha:.3f}, "
            f"{shown(now.tokens_per_second, 0)} tokens/s, {trainer.data.facts()['rows']} rows"
        )
        if now.tokens_per_pass >= trainer.best or not (out / "config.json").exists():
            trainer.best = max(trainer.best, now.tokens_per_pass)
            before_export(trainer.student, now)
            export(trainer.student, out, identity | _facts(trainer, now))

    with watched(console) as say:
        if trainer.progress >= 1:
            report(Report(trainer.step, 1.0, float("nan"), float("nan"), *trainer.validate()))
        trainer.run(report, say)


def _facts(trainer: Trainer, now: Report) -> dict:
    """What config.json records about how the weights were made."""
    return {
        "data": trainer.data.facts(),
        "recipe": {name: value for name, value in asdict(trainer.recipe).items() if value != float("inf")},
        "trained": {"steps": now.step, "seconds": round(trainer.seconds)},
        "validation": {"greedy_match": [round(m, 4) for m in now.matches], "expected_alpha": round(now.alpha, 4)},
    }


def measure(folder: Path, target: str, prompts: Path, answers: Path, tokens: int, card: Path | None) -> None:
    """Print a draft's acceptance on held-out prompts, and write it into a model card."""
    if card:
        measuring.read_card(card)
    read_prompts(prompts)
    student = measuring.Draft(folder)
    if not answers.exists():
        teacher = load_target(target, "cpu", lambda config, tokenizer: generation.Template.of(tokenizer))
        with watched(console) as say:
            lean = teacher.lean("cpu", torch.float32)
            recorded = measuring.record_answers(lean, teacher.tokenizer, prompts, tokens, say=say)
        measuring.save_answers(recorded, answers)
    result = measuring.table(measuring.measure(student, measuring.load_answers(answers)))
    console.print(result)
    if card:
        measuring.write_card(card, result)
