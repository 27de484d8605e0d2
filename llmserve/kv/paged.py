"""Blocks: K and V of a sequence anywhere in one tensor a layer, found through its block table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..blocks import BlockPool
from ..models.gpt2 import Config
from ..request import Chunk
from .base import Group, Read, TensorCache, beyond, check_size, index


class PagedCache(TensorCache):
    """K and V of `num_blocks` blocks: (blocks, heads, block_size, head_dim) a layer.

    A place is a block table: position p of a sequence lies in its block p // block_size.

    attention   "gathered": the blocks of each sequence are copied side by side, and attended to there: all
                single-token rows in one masked call, prompts one by one;
                "streamed": single tokens and short chunks in one compiled call, which reads the blocks
                where they are (`models/streamed.py`); longer chunks as above
    reserve     of the pool: see BlockPool
    sharing     the same
    max_num_seqs   so many at once are a full batch; None: as many as there are blocks
    """

    FORMS: ClassVar = {"gathered": 1, "streamed": 128}

    def __init__(
        self,
        config: Config,
        num_blocks: int,
        block_size: int = 16,
        max_model_len: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: str = "gathered",
        reserve: int = 0,
        sharing: bool = True,
        max_num_seqs: int | None = None,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.reserve, self.sharing = reserve, sharing
        longest = self.new_pool().longest  # refuses bad sizes
        self.max_model_len = min(longest, config.max_positions) if max_model_len is None else max_model_len
        self.max_num_seqs = max_num_seqs or num_blocks
        check_size(config, "num_blocks", num_blocks, self.max_model_len)
        super().__init__(config, num_blocks, block_size, dtype, device, attention)

    def new_pool(self) -> BlockPool:
        return BlockPool(self.num_blocks, self.block_size, self.reserve, self.sharing)

    def pieces(self, place: tuple[int, ...]) -> tuple[int, ...]:
        return place

    def read(self, chunk: Chunk) -> Read:
        end = chunk.start + chunk.num_tokens
        return self._gather([chunk.place[: -(-end // self.block_size)]], end)

    def group(self, chunks: list[Chunk]) -> Group:
        ends = [chunk.start + 1 for chunk in chunks]
        width = -(-max(ends) // self.block_size)
        # A shorter table is filled up with block 0: masked, whatever it holds.
        tables = [[*chunk.place[:width], *[0] * (width - len(chunk.place))] for chunk in chunks]
        return _DecodeGroup(self, self._gather(tables, max(ends)), ends)

    def _gather(self, tables: Sequence[Sequence[int]], end: int) -> Read:
        """Tables of equal length -> how to copy their blocks to (rows, heads, end, head_dim)."""
        _, _, heads, size, dim = self.k.shape
        blocks = index(tables, self.k)[:, None]  # (rows, 1, width)
        pieces = (blocks * heads + torch.arange(heads, device=self.k.device)[:, None]).flatten()

        def read(layer: Tensor) -> Tensor:
            copied = layer.view(-1, size * dim).index_select(0, pieces)
            return copied.view(len(tables), heads, -1, dim)[:, :, :end]

        return read


class _DecodeGroup:
    """All single-token rows in one masked call over copies of their blocks."""

    def __init__(self, cache: PagedCache, read: Read, ends: list[int]) -> None:
        self.cache, self.read, self.count = cache, read, len(ends)
        self.mask = beyond(ends, max(ends), cache.k)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, keys, values = q[: self.count], self.read(self.cache.k[layer]), self.read(self.cache.v[layer])
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=self.mask)[:, :, 0]
