"""What `train eagle` and `train medusa` do: compute the target's states along the text, train, measure, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from specdemo.errors import UserError
from specdemo.longwork import watched
from specdemo.models.files import read_config
from specdemo.training import eagle as eagle_training
from specdemo.training import features
from specdemo.training.dataset import Dataset, Learner
from specdemo.training.distill import Recipe, Report, Trainer
from specdemo.training.export import write_card
from specdemo.training.jobs import claim, console, train
from specdemo.training.medusa import Medusa
from specdemo.training.student import choose_vocabulary
from specdemo.training.target import Target, fast_dtype, load_target

_TITLES = {"eagle": "EAGLE head", "medusa": "Medusa heads"}
_SAMPLE = 4096  # positions from which the scale of the target's states is taken

Make = Callable[[Target, Tensor, Dataset, tuple[int, ...]], Learner]
"""A new head for a target and a vocabulary; the data give a sample of states at the taps."""


def eagle(mlp: int) -> Make:
    """An EAGLE head whose MLP is `mlp` wide; 0 is as wide as the target's."""

    def make(teacher: Target, vocab_ids: Tensor, data: Dataset, taps: tuple[int, ...]) -> Learner:
        embedding = teacher.weights["model.embed_tokens.weight"].bfloat16()
        config = eagle_training.make_config(teacher.config, mlp or teacher.config.intermediate_size)
        head = eagle_training.Eagle(config, vocab_ids, embedding, taps)
        eagle_training.initialise(head, teacher, data.some_features(_SAMPLE))
        return head

    return make


def medusa(heads: int, blocks: int) -> Make:
    """`heads` Medusa heads of `blocks` residual blocks each."""
    return lambda teacher, vocab_ids, data, taps: Medusa(teacher, vocab_ids, heads, blocks)


def train_head(
    make: Make, target: str, data: Path, out: Path, work: Path, resume: bool, vocab: int, recipe: Recipe, device: str
) -> None:
    """Train a head on the shards in `data` and export it to `out`; `work` holds the run's state."""
    torch.manual_seed(recipe.seed)
    teacher = load_target(target, device)
    taps = features.taps_of(teacher.config.num_hidden_layers)
    if not any(data.glob("*.npz")):
        raise UserError(f"{data} holds no training text yet. Write some first: python -m specdemo train generate")
    claim(data, teacher)
    model = teacher.lean(device, fast_dtype(device))
    with watched(console) as say:
        for _ in features.compute(model, data, taps, say):
            pass
    del model
    dataset = Dataset(data, features.folder_of(data, taps))
    resume = resume and (work / "state.pt").exists()
    size = teacher.weights["model.embed_tokens.weight"].shape[0]
    vocab_ids = (
        torch.load(work / "state.pt", weights_only=True)["vocab_ids"]
        if resume
        else choose_vocabulary(dataset.counts(size), teacher.tokenizer, vocab)
    )
    head = make(teacher, vocab_ids, dataset, taps).to(device)
    trainer = Trainer(head, dataset, recipe, work, fast_dtype(device))
    train(trainer, teacher, out, resume, before_export=_note_accuracies)
    kind = head.description["head"]
    facts = read_config(out)["specdemo"]
    write_card(head, out, f"{_TITLES[kind]} for a target of width {teacher.config.hidden_size}", kind, facts)


def _note_accuracies(head: Learner, now: Report) -> None:
    """What Medusa's tree is built from goes with its weights."""
    if isinstance(head, Medusa):
        head.accuracies = [[round(share, 4) for share in ranks] for ranks in now.accuracies]
