import numpy as np
import pytest
import torch

from specdemo.errors import UserError
from specdemo.training import measure as measuring
from specdemo.training.export import export
from specdemo.training.student import Student, make_config


def test_rounds_are_counted_as_a_decoder_would():
    # gamma 4: four right and a bonus token; one right, one wrong; wrong at once; two right and the text ends
    matches = [True] * 4 + [True] + [True, False] + [False] + [True, True]
    score = measuring.count_rounds(matches, gamma=4)
    assert (score.emitted, score.passes) == (10, 4)
    assert (score.accepted, score.tested) == (4 + 1 + 0 + 2, 4 + 2 + 1 + 2)


def test_a_perfect_draft_gives_gamma_plus_one_tokens_per_pass_and_a_useless_one_gives_one():
    assert measuring.count_rounds([True] * 100, gamma=4).tokens_per_pass == 5
    assert measuring.count_rounds([False] * 100, gamma=4).tokens_per_pass == 1


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "code", "prompt": "Hi"}\n{"category": "maths", "prompt": "1+1?"}\n')
    return file


def test_the_target_measured_against_itself_is_always_right(target, prompts, tmp_path):
    lean = target.lean("cpu", torch.float32)
    answers = measuring.record_answers(lean, target.tokenizer, prompts, tokens=12)
    measuring.save_answers(answers, tmp_path / "answers.npz")
    answers = measuring.load_answers(tmp_path / "answers.npz")
    assert [answer.category for answer in answers] == ["code", "maths"]
    copy = Student(make_config(target.config, 319, 32, 2, 64, 4, 2), torch.arange(319), 320)
    copy.config.head_dim, copy.config.rms_norm_eps = 8, target.config.rms_norm_eps
    export_copy(copy, target, tmp_path / "draft")
    scores = measuring.measure(measuring.Draft(tmp_path / "draft"), answers)
    assert scores["all"].alpha == 1
    assert scores["all"].expected_alpha == pytest.approx(1, abs=0.02)
    assert "| code | 1.000 |" in measuring.table(scores)


def export_copy(student: Student, target, folder) -> None:
    """Export the target itself as a draft of 319 tokens (the last of 320 is never used)."""
    from safetensors.torch import load_file, save_file

    export(student, folder, {})
    weights = {name: value for name, value in target.weights.items() if name.startswith("model.")}
    vocab_ids = load_file(folder / "model.safetensors")["vocab_ids"]
    save_file(
        {name: value.contiguous() for name, value in weights.items()} | {"vocab_ids": vocab_ids},
        folder / "model.safetensors",
    )


def test_a_card_without_a_results_section_is_refused(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("# Draft\n<!-- results: begin -->\nold\n<!-- results: end -->\nend\n")
    measuring.write_card(card, "new")
    assert card.read_text() == "# Draft\n<!-- results: begin -->\nnew\n<!-- results: end -->\nend\n"
    card.write_text("# Draft\n")
    with pytest.raises(UserError, match="results"):
        measuring.write_card(card, "new")


def test_category_names_survive_the_file(tmp_path):
    answer = measuring.Answer("story", *(np.zeros(2, int) for _ in range(5)))
    measuring.save_answers([answer], tmp_path / "a.npz")
    assert measuring.load_answers(tmp_path / "a.npz")[0].category == "story"
