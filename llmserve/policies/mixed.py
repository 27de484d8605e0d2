"""Continuous batching with prompts and decodes in the same step."""

from .continuous import Continuous


class Mixed(Continuous):
    def compose(self, running):
        return [(seq, seq.num_uncomputed_tokens) for seq in running]
