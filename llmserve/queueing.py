"""How long a request waits until a batch is full, from the arrival rate alone."""

from __future__ import annotations

import math


def fill_wait_tail(slots: int, rate: float, seconds: float) -> float:
    """The share of requests that wait longer than `seconds` for their batch to fill.

    Poisson arrivals at `rate` a second, and a machine that is free when the batch is full. The first of
    a batch waits for slots - 1 further arrivals, the last for none: a sum of k exponential gaps is
    longer than t with probability exp(-x) (1 + x + ... + x^(k-1) / (k-1)!), x = rate t (Erlang, 1909).
    """
    x, term, longer, total = rate * seconds, 1.0, 0.0, 0.0
    for k in range(1, slots):
        longer += term  # the sum over the first k terms
        total += longer
        term *= x / k
    return math.exp(-x) * total / slots


def fill_wait(slots: int, rate: float, q: float) -> float:
    """The q-th percentile of that wait, in seconds, by bisection."""
    if slots < 1 or rate <= 0 or not 0 <= q < 100:
        raise ValueError(f"slots={slots}, rate={rate}, q={q}: give 1 or more, above 0, and 0 to below 100")
    share, low, high = 1 - q / 100, 0.0, slots / rate
    while fill_wait_tail(slots, rate, high) > share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fill_wait_tail(slots, rate, middle) > share else (low, middle)
    return high
