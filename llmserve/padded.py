"""Padded batches, as a rectangular tensor needs them: pads on the left, and a mask over them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .engine import Engine
from .kv import SlotCache
from .models.gpt2 import GPT2, Attend
from .request import Chunk


class Rectangle(NamedTuple):
    """One row a sequence, (batch, width) each: tokens, positions, and the cache column of each."""

    tokens: Tensor
    positions: Tensor
    columns: Tensor


class PaddedEngine(Engine):
    """An engine for static batches whose prompts are padded to the longest of the batch.

    Pads cost what real tokens cost in every weight product, and a cache column each for as long as
    the batch lives. The mask keeps them out of the attention, so that the tokens stay the same.
    Serves a batch as one: whole prompts together, then one token for each row, in the same column.
    """

    def __init__(self, model: GPT2, cache: SlotCache, loop_seconds: float = 0.0) -> None:
        super().__init__(model, cache, loop_seconds)
        self._pads: dict[int, int] = {}  # place -> pads before the prompt of who has it now

    def _forward(self, chunks: list[Chunk]) -> Tensor:
        order = sorted(range(len(chunks)), key=lambda i: chunks[i].place)
        batch = [chunks[i] for i in order]
        self._require_rectangle(batch)
        width = max(chunk.num_tokens for chunk in batch)
        if _are_prompts(batch):
            self.cache.reset()
            self._pads = {chunk.place: width - chunk.num_tokens for chunk in batch}
        rectangle = self._rectangle(batch, width)
        head_rows = torch.arange(1, len(batch) + 1, device=self.model.device) * width - 1
        with torch.inference_mode():
            tokens, positions = rectangle.tokens.flatten(), rectangle.positions.flatten()
            logits = self.model(tokens, positions, self._attend(batch, rectangle.columns), head_rows)
        return logits if order == sorted(order) else logits[[order.index(i) for i in range(len(order))]]

    def _rectangle(self, batch: list[Chunk], width: int) -> Rectangle:
        tokens, positions, columns = [], [], []
        for chunk in batch:
            pads, end = [0] * (width - chunk.num_tokens), chunk.start + chunk.num_tokens
            last = end - 1 + self._pads[chunk.place]
            tokens.append(pads + chunk.sequence.token_ids[chunk.start : end])
            positions.append([*pads, *range(chunk.start, end)])
            columns.append(list(range(last - width + 1, last + 1)))
        longest = 1 + max(row[-1] for row in columns)
        if longest > self.max_model_len:
            raise ValueError(
                f"with its pads a row is {longest} tokens long, over max_model_len={self.max_model_len}; "
                "give the cache longer slots, or the batch prompts of nearer lengths"
            )
        return Rectangle(self._tensor(tokens), self._tensor(positions), self._tensor(columns))

    def _attend(self, batch: list[Chunk], columns: Tensor) -> Attend:
        end = int(columns.max()) + 1
        places = self._tensor([chunk.place for chunk in batch])
        # A view of the first slots, or a copy where an abort has left a hole.
        rows = slice(len(batch)) if batch[-1].place < len(batch) else places
        pads = self._tensor([self._pads[chunk.place] for chunk in batch])
        live = self._tensor([i for i, chunk in enumerate(batch) if not chunk.sequence.is_finished])
        keys_at = torch.arange(end, device=columns.device)
        # A query sees from its row's first real column to its own; a pad's query sees itself only.
        seen = (keys_at >= pads[:, None, None]) & (keys_at <= columns[:, :, None])
        seen |= keys_at == columns[:, :, None]
        mask = torch.zeros_like(seen, dtype=self.model.dtype).masked_fill_(~seen, -torch.inf)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.view(*columns.shape, *x.shape[1:]) for x in (q, k, v))
            keys, values = self.cache.k[layer], self.cache.v[layer]
            keys[places[live, None], :, columns[live]] = k[live]
            values[places[live, None], :, columns[live]] = v[live]
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys[rows, :, :end], values[rows, :, :end], attn_mask=mask
            )
            return out.transpose(1, 2).flatten(0, 1)

        return attend

    def _require_rectangle(self, batch: list[Chunk]) -> None:
        """A padded batch starts together and goes on in lockstep. Who is aborted may leave it."""
        decodes = all(c.num_tokens == 1 and c.place in self._pads for c in batch)
        if not (decodes or _are_prompts(batch)):
            raise ValueError(
                "a padded batch computes whole prompts together, then one token for each of its rows; "
                f"this step has {[(c.place, c.start, c.num_tokens) for c in batch][:8]} "
                "(place, start, tokens): use Static or Dynamic, or an engine without padding"
            )


def _are_prompts(batch: list[Chunk]) -> bool:
    return all(c.start == 0 and c.num_tokens == len(c.sequence.token_ids) for c in batch)
