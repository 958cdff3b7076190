"""Finding what the target has written before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.drafters.base import Proposal
from specdemo.drafters.first_of import FirstOf
from specdemo.drafters.retrieval import Retrieval
from specdemo.models.datastore import Datastore, load_datastore
from specdemo.models.loading import LoadedPair
from specdemo.prompts import read_prompts
from tests.tiny import CPU


def store(*rows: list[int]) -> Datastore:
    return Datastore([np.array(row, np.uint16) for row in rows])


def never() -> bool:
    return False


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_every_occurrence_is_found_and_nothing_else(rows: list[list[int]], tokens: list[int]) -> None:
    found = store(*rows)
    ids, n = found.ids.tolist(), len(tokens)
    expected = sorted(at + n for at in range(len(ids)) if ids[at : at + n] == tokens)
    assert sorted(found.after(tokens).tolist()) == expected


def test_the_majority_is_followed_and_its_share_told() -> None:
    found = store([1, 2, 3, 7], [1, 2, 3, 8], [1, 2, 4])
    assert found.likeliest(found.after([1, 2]), 5) == [(3, 2 / 4), (7, 1 / 3)] or found.likeliest(
        found.after([1, 2]), 5
    ) == [(3, 2 / 4), (8, 1 / 3)]


def test_a_continuation_ends_with_its_conversation() -> None:
    found = store([5, 6, 7], [9, 9, 9])
    assert [token for token, _ in found.likeliest(found.after([5]), 9)] == [6, 7]


def test_a_draft_ends_where_the_library_is_in_doubt() -> None:
    rows = [[1, 2, 3, 4, 10, token] for token in range(20, 29)]
    retrieval = Retrieval(store(*rows), 64, CPU)
    proposal = retrieval.propose([0, 1, 2, 3, 4], 6, never)
    assert proposal.ids.tolist() == [10]  # all nine agree on it, and on nothing behind it
    assert proposal.q.argmax(-1).tolist() == [10]
    assert proposal.steps == 0


def test_short_matches_are_no_evidence() -> None:
    retrieval = Retrieval(store([1, 2, 3, 4, 5]), 64, CPU)
    assert len(retrieval.propose([9, 2, 3, 4], 4, never)) == 0
    assert len(retrieval.propose([1, 2, 3, 4], 0, never)) == 0
    assert len(retrieval.propose([1, 2], 4, never)) == 0


def test_the_first_drafter_that_has_something_drafts() -> None:
    class Says:
        def __init__(self, ids: list[int], steps: int = 0) -> None:
            self.ids, self.steps, self.asked = ids, steps, 0

        taps, longest_context = (), None

        def prefill(self, prompt, target, stop) -> None: ...

        def rollback(self, length: int) -> None: ...

        def propose(self, context, gamma, stop) -> Proposal:
            self.asked += 1
            q = torch.nn.functional.one_hot(torch.tensor(self.ids, dtype=torch.long), 8).float()
            return Proposal(torch.tensor(self.ids), q, self.steps)

    silent, speaks, idle = Says([]), Says([1, 2]), Says([3])
    assert FirstOf([silent, speaks, idle]).propose([0], 4, never).ids.tolist() == [1, 2]
    assert (silent.asked, speaks.asked, idle.asked) == (1, 1, 0)
    doubtful = Says([], steps=1)  # a draft model that took a step only to doubt: the step counts
    assert FirstOf([silent, doubtful]).propose([0], 4, never).steps == 1


def test_the_shipped_text_loads_and_knows_what_the_target_says(default_pair: LoadedPair) -> None:
    assert default_pair.store is not None
    assert len(default_pair.store) > 500_000
    ids = default_pair.tokens.encode("The capital of France is", chat=False)
    counts = Counter(default_pair.store.ids[default_pair.store.after(ids[-2:])].tolist())
    assert counts


def test_a_folder_without_text_has_no_store(tmp_path) -> None:
    assert load_datastore(tmp_path) is None


@pytest.mark.parametrize("n", [1, 4, 5, 8])
def test_a_search_for_n_tokens_needs_all_of_them(n: int) -> None:
    found = store(list(range(20)))
    assert found.after(list(range(n))).tolist() == [n]
    assert found.after([*range(n - 1), 30]).tolist() == []


def test_the_prompts_that_everything_is_measured_on_are_not_in_the_shipped_text(default_pair: LoadedPair) -> None:
    store, prompts = default_pair.store, read_prompts(Path(__file__).parents[1] / "assets" / "prompts.jsonl")
    assert len(prompts) == 48
    text = store.ids.tobytes()
    assert store.ids[1000:1040].tobytes() in text
    for _, prompt in prompts:
        ids = default_pair.tokens.tokenizer.encode(prompt, add_special_tokens=False)
        assert np.array(ids, np.uint16).tobytes() not in text
