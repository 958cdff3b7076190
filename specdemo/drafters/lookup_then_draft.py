"""Looks up what repeats and drafts the rest: prompt lookup where it finds a match, the draft model elsewhere.

A summary quotes its source and code repeats its own names, which a lookup sees for nothing and a small model misses.
Where two words in a row have stood before, what followed them is right more often than this project's draft.
"""

from __future__ import annotations

from specdemo.drafters.base import Proposal, Stop
from specdemo.drafters.draft_model import DraftModel
from specdemo.drafters.prompt_lookup import PromptLookup


class LookupThenDraft:
    """Two drafters in turn. Each round's draft comes from one of them, so each q is what its token was drawn from."""

    def __init__(self, lookup: PromptLookup, draft: DraftModel) -> None:
        self.lookup, self.draft = lookup, draft

    def prefill(self, prompt: list[int], stop: Stop) -> None:
        self.lookup.prefill(prompt, stop)
        self.draft.prefill(prompt, stop)

    def propose(self, context: list[int], gamma: int, stop: Stop) -> Proposal:
        found = self.lookup.propose(context, gamma, stop)
        return found if len(found) else self.draft.propose(context, gamma, stop)

    def rollback(self, length: int) -> None:
        self.lookup.rollback(length)
        self.draft.rollback(length)
