"""The three questions that a batching policy answers at every step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..request import Sequence, whole

Plan = list[tuple[Sequence, int]]


def first_come(sequence: Sequence) -> float:
    """The default order of the queue: by arrival, ties in order of submission."""
    return sequence.arrival_time


class Policy(ABC):
    """Who may enter, what runs this step, who leaves. Parameters only, no state.

    `waiting` comes ordered by `key`, `running` in the order of admission. Both are copies:
    a policy proposes, the loop disposes.
    """

    max_num_batched_tokens: int | None = None  # the token budget of a step, where a policy has one

    def __init__(self, max_num_seqs: int, *, key: Callable[[Sequence], Any] = first_come) -> None:
        slots = whole(max_num_seqs)
        if slots is None or slots < 1:
            raise ValueError(
                f"max_num_seqs={max_num_seqs!r}: a batch needs a whole number of slots, 1 or more"
            )
        self.max_num_seqs = slots
        self.key = key

    @abstractmethod
    def admit(
        self, waiting: list[Sequence], running: list[Sequence], now: float, more_coming: bool
    ) -> list[Sequence]:
        """Who may enter? Sequences of `waiting`, in order; the loop takes as many as memory can hold."""

    @abstractmethod
    def compose(self, running: list[Sequence]) -> Plan:
        """What runs this step? (sequence, number of tokens) pairs; 1 for a decode."""

    @abstractmethod
    def release(self, running: list[Sequence], waiting: list[Sequence], now: float) -> list[Sequence]:
        """Who leaves? An unfinished sequence that leaves is preempted: it goes back to the queue."""

    def wake_at(self, waiting: list[Sequence]) -> float:
        """When could `admit` answer differently though nothing happened? Seconds; inf for never."""
        return math.inf

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if value is not first_come}
        inside = ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in shown.items())
        return f"{type(self).__name__}({inside})"
