"""Preemptive shortest remaining: a slot is taken back for somebody who will be done before anybody else."""

from .continuous import Continuous
from .order import shortest_remaining, steps_left


class ShortestRemaining(Continuous):
    def __init__(self, max_num_seqs, tokens_per_step, *, key=None):
        super().__init__(max_num_seqs, key=key or shortest_remaining(tokens_per_step))
        self.tokens_per_step = tokens_per_step

    def release(self, running, waiting, now):
        leaving = super().release(running, waiting, now)
        staying = [seq for seq in running if seq not in leaving]
        comers = waiting[self.max_num_seqs - len(staying) :]  # those for whom no slot is free
        if staying and comers:
            left = {seq: steps_left(seq, self.tokens_per_step) for seq in [comers[0], *staying]}
            victim = max(staying, key=left.get)
            price = victim.num_computed_tokens / self.tokens_per_step  # it has to compute them again
            is_done_first = left[comers[0]] + price < min(left[seq] for seq in staying)
            if is_done_first and self.key(comers[0]) < self.key(victim):
                leaving.append(victim)
        return leaving
