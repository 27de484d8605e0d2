"""Dynamic batching: static, but a batch also starts when its oldest member has waited long enough."""

import math

from .base import first_come
from .static import Static


class Dynamic(Static):
    def __init__(self, max_num_seqs, max_wait, *, key=first_come):
        super().__init__(max_num_seqs, key=key)
        if not isinstance(max_wait, int | float) or not max_wait >= 0:
            raise ValueError(f"max_wait={max_wait!r}: give seconds, 0 or more")
        self.max_wait = max_wait

    def admit(self, waiting, running, now, more_coming):
        timed_out = now >= self.wake_at(waiting)
        return super().admit(waiting, running, now, more_coming and not timed_out)

    def wake_at(self, waiting):
        return min((seq.arrival_time for seq in waiting), default=math.inf) + self.max_wait
