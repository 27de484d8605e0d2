"""Who holds how much cache memory, and where. No tensors here: the same pool serves a simulator."""

from __future__ import annotations

import heapq
from typing import Any, Protocol

from .request import Sequence, whole


class Pool(Protocol):
    """What the loop needs of a pool. Sizes are tokens of K and V."""

    @property
    def longest(self) -> int:
        """Prompt and output tokens of the longest request that can run, alone."""

    def admit(self, sequence: Sequence) -> int | None:
        """Memory for all its tokens so far. How many have K and V there already; None if there is no room."""

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Memory for so many tokens of it in all. False, and nothing changed, if there is none."""

    def free(self, sequence: Sequence) -> None: ...

    def place(self, sequence: Sequence) -> Any:
        """Where its K and V are, for the engine."""

    def row(self, sequence: Sequence) -> int:
        """A number of its own among those who hold memory, for the log."""

    @property
    def total_tokens(self) -> int: ...

    @property
    def free_tokens(self) -> int: ...

    @property
    def reserved_tokens(self) -> int: ...

    @property
    def used_tokens(self) -> int:
        """What of the reserved memory holds K and V."""

    def check(self) -> None:
        """RuntimeError if the books do not balance."""


class SlotPool:
    """`num_slots` fixed slots of `slot_tokens` tokens each. A sequence holds one slot until it leaves."""

    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        require_whole("num_slots", num_slots)
        require_whole("slot_tokens", slot_tokens)
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self._free = list(range(num_slots))
        self._slot_of: dict[Sequence, int] = {}

    @property
    def longest(self) -> int:
        return self.slot_tokens

    def admit(self, sequence: Sequence) -> int | None:
        """Reserve the lowest free slot; None if there is none."""
        if not self._free:
            return None
        self._slot_of[sequence] = heapq.heappop(self._free)
        return 0

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """A slot has room for the longest request from the start."""
        return True

    def place(self, sequence: Sequence) -> int:
        return self._slot_of[sequence]

    row = place

    def free(self, sequence: Sequence) -> None:
        heapq.heappush(self._free, self._slot_of.pop(sequence))

    @property
    def total_tokens(self) -> int:
        return self.num_slots * self.slot_tokens

    @property
    def free_tokens(self) -> int:
        return len(self._free) * self.slot_tokens

    @property
    def reserved_tokens(self) -> int:
        return len(self._slot_of) * self.slot_tokens

    @property
    def used_tokens(self) -> int:
        return sum([sequence.num_computed_tokens for sequence in self._slot_of])

    def check(self) -> None:
        """Free + reserved = total, and no slot is both or twice; raises RuntimeError otherwise."""
        slots = sorted([*self._free, *self._slot_of.values()])
        if slots != list(range(self.num_slots)):
            held = {sequence.id: slot for sequence, slot in self._slot_of.items()}
            raise RuntimeError(f"slots lost or held twice: free {self._free}, held {held}")


def require_whole(name: str, value: object, least: int = 1) -> None:
    """ValueError naming the value and the limit."""
    number = whole(value)
    if number is None or number < least:
        raise ValueError(f"{name}={value!r}: a pool needs a whole number, at least {least}")
