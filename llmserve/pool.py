"""Who holds how much cache memory, and where. No tensors here: the same pool serves a simulator."""

from __future__ import annotations

import heapq

from .request import whole


class SlotPool:
    """`num_slots` fixed slots of `slot_tokens` tokens each. A sequence holds one slot until it leaves."""

    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        for name, value in (("num_slots", num_slots), ("slot_tokens", slot_tokens)):
            if (whole(value) or 0) < 1:
                raise ValueError(f"{name}={value!r}: a pool needs a whole number, at least 1")
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self._free = list(range(num_slots))
        self._slot_of: dict[str, int] = {}

    def admit(self, sequence_id: str) -> bool:
        """Reserve the lowest free slot; False if there is none."""
        if not self._free:
            return False
        self._slot_of[sequence_id] = heapq.heappop(self._free)
        return True

    def place(self, sequence_id: str) -> int:
        return self._slot_of[sequence_id]

    def free(self, sequence_id: str) -> None:
        heapq.heappush(self._free, self._slot_of.pop(sequence_id))

    @property
    def total_tokens(self) -> int:
        return self.num_slots * self.slot_tokens

    @property
    def free_tokens(self) -> int:
        return len(self._free) * self.slot_tokens

    @property
    def reserved_tokens(self) -> int:
        return len(self._slot_of) * self.slot_tokens

    def check(self) -> None:
        """Free + reserved = total, and no slot is both or twice; raises RuntimeError otherwise."""
        slots = sorted([*self._free, *self._slot_of.values()])
        if slots != list(range(self.num_slots)):
            raise RuntimeError(f"slots lost or held twice: free {self._free}, held {self._slot_of}")
