"""Static batching: fill a batch, run it until its longest member is done, take the next."""

from .base import Policy


class Static(Policy):
    def admit(self, waiting, running, now, more_coming):
        if running or (more_coming and len(waiting) < self.max_num_seqs):
            return []
        return waiting[: self.max_num_seqs]

    def compose(self, running):
        prompts = [seq for seq in running if not seq.is_decoding]
        if prompts:
            return [(seq, seq.num_uncomputed_tokens) for seq in prompts]
        return [(seq, 1) for seq in running]  # one row each, finished or not

    def release(self, running, waiting, now):
        return running if all(seq.is_finished for seq in running) else []
