"""Fixed slots: one preallocated tensor a layer for K and for V, written in place."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.gpt2 import Config
from ..pool import SlotPool
from ..request import Chunk
from .base import Group, Read, TensorCache, beyond, check_size, index


class SlotCache(TensorCache):
    """K and V of `num_slots` sequences: (slots, heads, max_model_len, head_dim) a layer.

    attention   "loop": one call a sequence (the post's engine);
                "batched": all single-token rows in one masked call on views of the cache, prompts one by one;
                "streamed": those and the rows of short chunks in one compiled call, which writes K and V
                and reads each slot only as far as it is filled (`models/streamed.py`)
    """

    FORMS: ClassVar = {"batched": 1, "streamed": 128, "loop": 0}

    def __init__(
        self,
        config: Config,
        num_slots: int,
        max_model_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: str = "batched",
    ) -> None:
        check_size(config, "num_slots", num_slots, max_model_len)
        super().__init__(config, num_slots, max_model_len, dtype, device, attention)
        self.max_num_seqs, self.max_model_len = num_slots, max_model_len

    def new_pool(self) -> SlotPool:
        return SlotPool(self.max_num_seqs, self.max_model_len)

    def pieces(self, place: int) -> tuple[int]:
        return (place,)

    def read(self, chunk: Chunk) -> Read:
        """A view, not a copy."""
        place, end = chunk.place, chunk.start + chunk.num_tokens
        return lambda layer: layer[place, :, :end][None]

    def group(self, chunks: list[Chunk]) -> Group:
        return _DecodeGroup(chunks, self.k, self.v)


class _DecodeGroup:
    """All single-token rows in one masked call over the slots from the first to the last of them."""

    def __init__(self, chunks: list[Chunk], keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.first, last = chunks[0].place, chunks[-1].place
        lengths = [1] * (last - self.first + 1)  # a slot between them that does not take part reads 1 token
        for chunk in chunks:
            lengths[chunk.place - self.first] = chunk.start + 1
        self.count, self.num_slots, self.longest = len(chunks), len(lengths), max(lengths)
        self.slots = None
        if self.num_slots != self.count:
            self.slots = index([chunk.place - self.first for chunk in chunks], keys)
        self.mask = beyond(lengths, self.longest, keys)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q[: self.count]
        if self.slots is not None:
            q = q.new_zeros(self.num_slots, *q.shape[1:]).index_copy_(0, self.slots, q)
        slots = slice(self.first, self.first + self.num_slots)
        # Views of the cache, not copies.
        keys, values = (cache[layer, slots, :, : self.longest] for cache in (self.keys, self.values))
        out = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=self.mask)
        return out[:, :, 0] if self.slots is None else out[self.slots, :, 0]
