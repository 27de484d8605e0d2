"""One tensor a layer for the whole batch, grown by torch.cat: what most first engines do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.gpt2 import Attend, Config
from ..pool import SlotPool
from ..request import Chunk, Sequence
from .base import check_size


class CatCache:
    """K and V as (batch, heads, tokens, head_dim) a layer. All sequences advance in lockstep.

    A batch starts together, with prompts of equal length, and its members take the same number of
    tokens in each step until all end together. Anything else is refused: the tensor has one length.
    """

    def __init__(self, config: Config, num_slots: int, max_model_len: int) -> None:
        check_size(config, "num_slots", num_slots, max_model_len)
        self.max_num_seqs, self.max_model_len = num_slots, max_model_len
        self.num_layers = config.num_layers
        self.reset()

    def new_pool(self) -> SlotPool:
        return SlotPool(self.max_num_seqs, self.max_model_len)

    def reset(self) -> None:
        """Forget the batch: a new run, or a new batch after the last one has ended."""
        self.k: list[Tensor | None] = [None] * self.num_layers
        self.v: list[Tensor | None] = [None] * self.num_layers
        self.members: list[Sequence] = []
        self.length = 0

    def spoil(self, places: Iterable[int]) -> None:
        """Nothing to do: a new batch starts with new tensors."""

    def begin_step(self, chunks: list[Chunk], positions: Tensor) -> Attend:
        """Check that the step is lockstep; returns its attend(layer, q, k, v). ValueError otherwise."""
        members = [chunk.sequence for chunk in chunks]
        starts, counts = {chunk.start for chunk in chunks}, {chunk.num_tokens for chunk in chunks}
        done = all(sequence.is_finished or not sequence.num_computed_tokens for sequence in self.members)
        if starts == {0} and done:
            self.reset()
            self.members = members
        self._drop_aborted(members)
        if members != self.members:
            held, given = ([sequence.id for sequence in group] for group in (self.members, members))
            raise ValueError(
                f"the cat cache holds a batch of {held} and was given {given}: "
                "none can join or leave; use a SlotCache"
            )
        if starts != {self.length} or len(counts) > 1:
            raise ValueError(
                f"the cat cache serves batches in lockstep: after {self.length} tokens it was given starts "
                f"{sorted(starts)} and counts {sorted(counts)}; use equal lengths, or a SlotCache"
            )
        batch, tokens = len(chunks), counts.pop()
        self.length += tokens

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.unflatten(0, (batch, tokens)).transpose(1, 2) for x in (q, k, v))
            if self.k[layer] is not None:  # a new tensor, and a copy of all that was there
                k, v = torch.cat([self.k[layer], k], dim=2), torch.cat([self.v[layer], v], dim=2)
            self.k[layer], self.v[layer] = k, v
            causal = tokens > 1 and self.length == tokens
            mask = None if causal or tokens == 1 else _later(tokens, self.length, q)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            return out.transpose(1, 2).flatten(0, 1)

        return attend

    def _drop_aborted(self, members: list[Sequence]) -> None:
        """Take the rows of aborted members out. The others go on in lockstep."""
        left = [i for i, one in enumerate(self.members) if one in members or one.finish_reason != "abort"]
        if len(left) == len(self.members):
            return
        self.members = [self.members[i] for i in left]
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            if k is not None and v is not None:
                self.k[layer], self.v[layer] = k[left], v[left]


def _later(tokens: int, length: int, like: Tensor) -> Tensor:
    """Additive mask (tokens, length) for the last `tokens` positions: none sees a later one."""
    mask = torch.full((tokens, length), -torch.inf, dtype=like.dtype, device=like.device)
    return mask.triu_(length - tokens + 1)
