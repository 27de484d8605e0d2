"""The memory of one logged run in other hands: fixed slots, one contiguous piece each, or blocks.

All from the log: who was there in which steps, and how many tokens it had in the cache. Nothing runs.
Sizes are tokens of K and V; times `Config.kv_bytes_per_token` they are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .run import Run


@dataclass(frozen=True)
class Stay:
    """One request's time in memory: first and last step, tokens in the cache after each, and at most."""

    request_id: str
    first: int
    tokens: list[int]
    need: int  # prompt + max_tokens: what it asks for when it enters

    @property
    def last(self) -> int:
        return self.first + len(self.tokens) - 1


def stays(run: Run) -> list[Stay]:
    """Every request that was computed, in the order in which they entered.

    A stay begins with the first step after the admission, also where that step has no tokens for it.
    """
    need = {request.id: len(request.prompt_token_ids) + request.max_tokens for request in run.submitted}
    entered = [(event.time, event.request_id) for event in run.events if event.kind == "admit"]
    found: dict[str, Stay] = {}
    for number, step in enumerate(run.log):
        while entered and entered[0][0] <= step.start:
            name = entered.pop(0)[1]
            found.setdefault(name, Stay(name, number, [], need[name]))
        for chunk in step.chunks:
            tokens, first = found[chunk.request_id].tokens, found[chunk.request_id].first
            before = tokens[-1] if tokens else 0
            tokens.extend([before] * (number - first - len(tokens)))  # steps without it
            tokens.append(max(before, chunk.start + chunk.num_tokens))
    return list(found.values())


class Allocator(Protocol):
    """Hands out cache memory. `enter` and `grow` say whether there was room; on False nothing has changed."""

    total: int

    def enter(self, stay: Stay) -> bool: ...

    def grow(self, stay: Stay, tokens: int) -> bool: ...

    def leave(self, stay: Stay) -> None: ...

    @property
    def reserved(self) -> int: ...


@dataclass
class Slots:
    """A full-length slot each, whatever is asked for."""

    total: int
    slot: int
    held: set[str] = field(default_factory=set)

    def enter(self, stay: Stay) -> bool:
        if self.reserved + self.slot > self.total or stay.need > self.slot:
            return False
        self.held.add(stay.request_id)
        return True

    def grow(self, stay: Stay, tokens: int) -> bool:
        return True

    def leave(self, stay: Stay) -> None:
        self.held.remove(stay.request_id)

    @property
    def reserved(self) -> int:
        return self.slot * len(self.held)


@dataclass
class FirstFit:
    """One contiguous piece each, as long as the request may become, in the first gap that is large enough."""

    total: int
    pieces: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> start, length

    def enter(self, stay: Stay) -> bool:
        start = 0
        for at, length in sorted([*self.pieces.values(), (self.total, 0)]):
            if at - start >= stay.need:
                self.pieces[stay.request_id] = (start, stay.need)
                return True
            start = at + length
        return False

    def grow(self, stay: Stay, tokens: int) -> bool:
        return True

    def leave(self, stay: Stay) -> None:
        del self.pieces[stay.request_id]

    @property
    def reserved(self) -> int:
        return sum(length for _, length in self.pieces.values())


@dataclass
class Blocks:
    """Blocks of equal size, anywhere, as many as the tokens need now."""

    total: int
    block: int
    held: dict[str, int] = field(default_factory=dict)  # id -> blocks

    def enter(self, stay: Stay) -> bool:
        return self.grow(stay, stay.tokens[0])

    def grow(self, stay: Stay, tokens: int) -> bool:
        blocks = -(-tokens // self.block)
        more = blocks - self.held.get(stay.request_id, 0)
        if self.reserved + more * self.block > self.total:
            return False
        self.held[stay.request_id] = blocks
        return True

    def leave(self, stay: Stay) -> None:
        del self.held[stay.request_id]

    @property
    def reserved(self) -> int:
        return self.block * sum(self.held.values())


@dataclass(frozen=True)
class Replay:
    """What an allocator would have done with a run.

    reserved, used   tokens after each step, of those that had room
    refused          requests that found no room when they entered
    despite_room     of these, those for whom enough was free, but not in one piece: external fragmentation
    ousted           requests that had entered and found no room to grow
    """

    reserved: list[int]
    used: list[int]
    refused: list[str]
    despite_room: list[str]
    ousted: list[str]

    @property
    def waste(self) -> float:
        """Share of the reserved memory that held no token, over all steps: internal fragmentation."""
        return 1 - sum(self.used) / sum(self.reserved)


def replay(run: Run, make: Callable[[], Allocator]) -> Replay:
    """The run's requests come and go as they did; one without room is turned away and not asked again."""
    allocator, everyone = make(), stays(run)
    here: list[Stay] = []
    result = Replay([], [], [], [], [])
    for step in range(len(run.log)):
        for stay in [stay for stay in here if stay.last < step]:
            allocator.leave(stay)
            here.remove(stay)
        for stay in [stay for stay in everyone if stay.first == step]:
            if allocator.enter(stay):
                here.append(stay)
                continue
            result.refused.append(stay.request_id)
            if allocator.total - allocator.reserved >= stay.need:
                result.despite_room.append(stay.request_id)
        for stay in list(here):
            if not allocator.grow(stay, stay.tokens[step - stay.first]):
                result.ousted.append(stay.request_id)
                allocator.leave(stay)
                here.remove(stay)
        result.reserved.append(allocator.reserved)
        result.used.append(sum(stay.tokens[step - stay.first] for stay in here))
    return result
