"""Bucketed batching: static batches of requests whose expected lengths lie close together."""

from .order import expected_tokens
from .static import Static


class Bucketed(Static):
    def admit(self, waiting, running, now, more_coming):
        size = len(super().admit(waiting, running, now, more_coming))
        if not size:
            return []
        oldest = min(waiting, key=lambda seq: seq.arrival_time)
        by_length = sorted(waiting, key=expected_tokens)
        at = by_length.index(oldest)
        windows = [by_length[i : i + size] for i in range(max(0, at - size + 1), at + 1)]
        full = [window for window in windows if len(window) == size]
        batch = min(full, key=lambda w: expected_tokens(w[-1]) - expected_tokens(w[0]))
        return sorted(batch, key=lambda seq: (seq is not oldest, waiting.index(seq)))
