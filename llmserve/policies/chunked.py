"""Chunked prefill: every decode first, then prompt tokens up to the budget of the step."""

from ..request import whole
from .base import first_come
from .continuous import Continuous


class Chunked(Continuous):
    def __init__(self, max_num_seqs, max_num_batched_tokens, *, key=first_come):
        super().__init__(max_num_seqs, key=key)
        budget = whole(max_num_batched_tokens)
        if budget is None or budget < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={max_num_batched_tokens!r}: give a whole number, at least "
                f"max_num_seqs={max_num_seqs}, so that every decode gets its token"
            )
        self.max_num_batched_tokens = budget

    def compose(self, running):
        left, plan = self.max_num_batched_tokens, []
        # Decodes first. The sort is stable, so among prompts the oldest goes first.
        for seq in sorted(running, key=lambda seq: not seq.is_decoding):
            tokens = min(seq.num_uncomputed_tokens, left)
            if tokens:
                plan.append((seq, tokens))
                left -= tokens
        return plan
