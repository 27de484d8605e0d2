"""Continuous batching: enter as soon as a slot is free, leave as soon as you are done."""

from .static import Static


class Continuous(Static):
    """Prefill-first: a step with newcomers runs their prompts alone (`compose` is static's)."""

    def admit(self, waiting, running, now, more_coming):
        return waiting[: self.max_num_seqs - len(running)]

    def release(self, running, waiting, now):
        return [seq for seq in running if seq.is_finished]
