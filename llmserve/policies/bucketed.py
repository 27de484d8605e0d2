"""Bucketed batching: static batches of requests whose expected lengths lie close together."""

from .static import Static


def expected_tokens(seq):
    if seq.request.expected_tokens is None:
        raise ValueError(
            f"request {seq.id!r} has no expected_tokens, which a length oracle reads: "
            "set Request(expected_tokens=...), or take a policy that needs no hint"
        )
    return seq.request.expected_tokens


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
