"""Cache memory in blocks of equal size: taken as a sequence grows, shared where prompts begin alike."""

from __future__ import annotations

from collections import Counter
from itertools import count

from .pool import require_whole
from .request import Sequence

# What a full block holds: the content before it (a number given to each content once, 0 for none) and
# its own tokens. Two blocks with equal keys hold the same K and V: a key stands for a whole beginning.
Key = tuple[int, tuple[int, ...]]


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens. A sequence holds a table: its blocks, in order.

    reserve   blocks that an admission must leave for those already running to grow into; ignored when
              no one runs
    sharing   find full blocks by their tokens, and keep freed ones until their memory is needed

    A block is free, used (in one table or more) or cached (in none, its K and V still of use). Only full
    blocks are shared, and a sequence never writes to a full block, so none writes what another reads.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, reserve: int = 0, sharing: bool = True) -> None:
        require_whole("num_blocks", num_blocks)
        require_whole("block_size", block_size)
        require_whole("reserve", reserve, least=0)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.reserve, self.sharing = reserve, sharing
        self._tables: dict[Sequence, list[int]] = {}
        self._rows: dict[Sequence, int] = {}
        self._free = list(reversed(range(num_blocks)))
        self._cached: dict[int, None] = {}  # least recently used first
        self._holders = [0] * num_blocks
        self._known: dict[Key, int] = {}  # the block that holds it
        self._key_of: dict[int, Key] = {}
        self._content: dict[int, int] = {}  # block -> the number of its content
        self._chains: dict[Sequence, list[int]] = {}  # the contents of its full blocks
        self._numbers = count(1)

    # -- what the loop asks --------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        return self.num_blocks * self.block_size + 1  # the last output token needs no K and V

    def admit(self, sequence: Sequence) -> int | None:
        """Blocks for all its tokens so far: those that hold its beginning already, and fresh ones.

        How many tokens need not be computed; None, and nothing changed, if too few blocks are free.
        """
        self._note_full_blocks()
        chain = self._beginning(sequence.token_ids)
        found = [self._known[key] for key in chain]
        fresh = self.blocks_for(len(sequence.token_ids)) - len(found)
        woken = sum([self._holders[block] == 0 for block in found])
        spare = self.reserve if self._tables else 0
        if self.num_available - woken - fresh < spare:
            return None
        for block in found:
            self._hold(block)
        self._tables[sequence] = found + [self._take() for _ in range(fresh)]
        self._chains[sequence] = [self._content[block] for block in found]
        rows = set(self._rows.values())
        self._rows[sequence] = next(row for row in count() if row not in rows)
        return len(found) * self.block_size

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        table = self._tables[sequence]
        more = self.blocks_for(tokens) - len(table)
        if more > self.num_available:
            return False
        table.extend(self._take() for _ in range(more))
        return True

    def free(self, sequence: Sequence) -> None:
        """Let go of its blocks, the last first: a beginning is of use alone, what follows it is not."""
        self._note_full_blocks()
        del self._rows[sequence], self._chains[sequence]
        for block in reversed(self._tables.pop(sequence)):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def place(self, sequence: Sequence) -> tuple[int, ...]:
        """Its block table."""
        return tuple(self._tables[sequence])

    def row(self, sequence: Sequence) -> int:
        return self._rows[sequence]

    # -- blocks --------------------------------------------------------------------------------------

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free, or cached and given up for it."""
        return len(self._free) + len(self._cached)

    def _hold(self, block: int) -> None:
        self._cached.pop(block, None)
        self._holders[block] += 1

    def _take(self) -> int:
        """A free block; if there is none, the cached one that has been of no use for longest."""
        block = self._free.pop() if self._free else self._evict()
        self._holders[block] = 1
        return block

    def _evict(self) -> int:
        block = next(iter(self._cached))
        del self._cached[block], self._known[self._key_of.pop(block)], self._content[block]
        return block

    # -- what blocks hold ----------------------------------------------------------------------------

    def _beginning(self, token_ids: list[int]) -> list[Key]:
        """Keys of the known full blocks that these tokens begin with, all but one token at most.

        The last token is always computed, for its logits. The dictionary compares the tokens themselves:
        equal hashes are not enough.
        """
        chain: list[Key] = []
        before, size = 0, self.block_size
        for end in range(size, len(token_ids), size):
            key = (before, tuple(token_ids[end - size : end]))
            if key not in self._known:
                break
            chain.append(key)
            before = self._content[self._known[key]]
        return chain

    def _note_full_blocks(self) -> None:
        """Make known what has been computed since this was last asked."""
        if self.sharing:
            for sequence, chain in self._chains.items():
                for at in range(len(chain), sequence.num_computed_tokens // self.block_size):
                    chain.append(self._note(sequence, at, chain[-1] if chain else 0))

    def _note(self, sequence: Sequence, at: int, before: int) -> int:
        """The number of the content of its block `at`; a copy of what is known stays this sequence's own."""
        size, block = self.block_size, self._tables[sequence][at]
        key = (before, tuple(sequence.token_ids[at * size : (at + 1) * size]))
        if key not in self._known:
            self._known[key], self._key_of[block] = block, key
            self._content[block] = next(self._numbers)
        return self._content[self._known[key]]

    # -- the books -----------------------------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def free_tokens(self) -> int:
        """Of all blocks that can be taken, cached ones too."""
        return self.num_available * self.block_size

    @property
    def cached_tokens(self) -> int:
        return len(self._cached) * self.block_size

    @property
    def reserved_tokens(self) -> int:
        return (self.num_blocks - self.num_available) * self.block_size

    @property
    def used_tokens(self) -> int:
        """K and V of sequences that run, those of a shared block once."""
        listed = sum([len(table) for table in self._tables.values()]) * self.block_size
        computed = sum([sequence.num_computed_tokens for sequence in self._tables])
        return computed - (listed - self.reserved_tokens)

    def check(self) -> None:
        """Free + used + cached = total, each block held as often as tables list it; else RuntimeError."""
        listed = Counter(block for table in self._tables.values() for block in table)
        states = sorted([*self._free, *listed.keys(), *self._cached])
        if states != list(range(self.num_blocks)):
            raise RuntimeError(f"blocks lost or in two states: {states} of {self.num_blocks}")
        wrong = [block for block in states if self._holders[block] != listed[block]]
        if wrong:
            counted = {block: (self._holders[block], listed[block]) for block in wrong}
            raise RuntimeError(f"blocks held other than counted: (counted, held) {counted}")
        if {key: block for block, key in self._key_of.items()} != self._known:
            raise RuntimeError(f"blocks found under another's tokens: {self._key_of} and {self._known}")
        if not set(self._cached) <= set(self._key_of):
            raise RuntimeError(f"cached blocks that nothing finds: {set(self._cached) - set(self._key_of)}")
