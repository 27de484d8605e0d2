"""Fixed slots: one preallocated tensor a layer for K and for V, written in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory import zeros
from ..models.gpt2 import Attend, Config
from ..models.linear import why_not_streamed
from ..models.streamed import StreamedAttention
from ..request import Chunk, whole

# The forms of attention: up to how many tokens a chunk shares one call with others.
FORMS = {"batched": 1, "streamed": 128, "loop": 0}


class SlotCache:
    """K and V of `num_slots` sequences: (slots, heads, max_model_len, head_dim) a layer.

    attention   "loop": one call a sequence (the post's engine);
                "batched": all single-token rows in one masked call on views of the cache, prompts one by one;
                "streamed": those and the rows of short chunks in one compiled call, which writes K and V
                and reads each slot only as far as it is filled (`models/streamed.py`)
    """

    def __init__(
        self,
        config: Config,
        num_slots: int,
        max_model_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: str = "batched",
    ) -> None:
        if attention not in FORMS:
            raise ValueError(f"attention={attention!r}: choose one of {', '.join(FORMS)}")
        reason = why_not_streamed(dtype, device, config.head_dim) if attention == "streamed" else None
        if reason:
            raise ValueError(f"attention='streamed' cannot be used here: {reason}; use 'batched'")
        check_size(config, num_slots, max_model_len)
        self.num_slots, self.max_model_len, self.attention = num_slots, max_model_len, attention
        shape = (config.num_layers, num_slots, config.num_heads, max_model_len, config.head_dim)
        # Zeros, not empty: a masked row of a slot never used must not turn up a NaN.
        self.k, self.v = (zeros(shape, dtype, device) for _ in range(2))
        self._spoiled: set[int] = set()

    def reset(self) -> None:
        """A new run. A slot is read no further than its holder has written, so numbers may stay."""
        self._clear(self._spoiled)

    def spoil(self, places: Iterable[int]) -> None:
        """These slots may hold NaN, which no mask hides (0 x NaN is NaN): cleared before the next holder."""
        self._spoiled.update(places)

    def _clear(self, places: Iterable[int]) -> None:
        for place in list(places):
            self.k[:, place], self.v[:, place] = 0, 0
            self._spoiled.discard(place)

    def begin_step(self, chunks: list[Chunk], positions: Tensor) -> Attend:
        """Work out once what every layer of this step needs; returns its attend(layer, q, k, v).

        The chunks' tokens lie one after the other in `positions` (T,), single-token chunks first
        and in order of place.
        """
        if self._spoiled:
            self._clear({chunk.place for chunk in chunks if chunk.start == 0} & self._spoiled)
        together = list(takewhile(lambda chunk: chunk.num_tokens <= FORMS[self.attention], chunks))
        rows, others = sum(chunk.num_tokens for chunk in together), chunks[len(together) :]
        streamed = self.attention == "streamed"  # writes its own rows
        group = None
        if together:
            group = (
                _streamed(together, self.k, self.v) if streamed else _DecodeGroup(together, self.k, self.v)
            )
        if streamed and not others:
            return group
        first, unwritten = (rows, others) if streamed else (0, chunks)
        write = _WritePlan(unwritten, positions[first:]) if unwritten else None
        alone = [_PromptChunk(chunk, self.k) for chunk in others]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.k[layer], self.v[layer]
            if write:
                write(keys, values, k[first:], v[first:])
            outputs = [group(layer, q, k, v)] if group else []
            at = rows
            for chunk in alone:
                outputs.append(chunk(q[at : at + chunk.num_tokens], keys, values))
                at += chunk.num_tokens
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend


def check_size(config: Config, num_slots: int, max_model_len: int) -> None:
    """ValueError for a cache of no slots, or of more positions than the model knows."""
    if (whole(num_slots) or 0) < 1:
        raise ValueError(f"num_slots={num_slots!r}: a cache needs a whole number of slots, at least 1")
    if not 1 <= (whole(max_model_len) or 0) <= config.max_positions:
        raise ValueError(
            f"max_model_len={max_model_len!r}: the model knows positions for 1 to "
            f"{config.max_positions} tokens; choose a length within that"
        )


class _WritePlan:
    """Where the step's K and V go. A zombie row's are in the cache already and stay as they are."""

    def __init__(self, chunks: list[Chunk], positions: Tensor) -> None:
        live = [not chunk.sequence.is_finished for chunk in chunks for _ in range(chunk.num_tokens)]
        places = [chunk.place for chunk in chunks for _ in range(chunk.num_tokens)]
        self.rows = (
            None if all(live) else _index([row for row, is_live in enumerate(live) if is_live], positions)
        )
        self.places, self.positions = _index(places, positions), positions
        if self.rows is not None:
            self.places, self.positions = self.places[self.rows], positions[self.rows]

    def __call__(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor) -> None:
        if self.rows is not None:
            k, v = k[self.rows], v[self.rows]
        keys[self.places, :, self.positions] = k
        values[self.places, :, self.positions] = v


class _DecodeGroup:
    """All single-token rows in one masked call over the slots from the first to the last of them."""

    def __init__(self, chunks: list[Chunk], like: Tensor, values: Tensor) -> None:
        self.keys, self.values = like, values
        self.first, last = chunks[0].place, chunks[-1].place
        lengths = [1] * (last - self.first + 1)  # a slot between them that does not take part reads 1 token
        for chunk in chunks:
            lengths[chunk.place - self.first] = chunk.start + 1
        self.count, self.num_slots, self.longest = len(chunks), len(lengths), max(lengths)
        self.slots = None
        if self.num_slots != self.count:
            self.slots = _index([chunk.place - self.first for chunk in chunks], like)
        beyond = torch.arange(self.longest, device=like.device) >= _index(lengths, like)[:, None]
        self.mask = torch.zeros_like(beyond, dtype=like.dtype).masked_fill_(beyond, -torch.inf)[:, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q[: self.count]
        if self.slots is not None:
            q = q.new_zeros(self.num_slots, *q.shape[1:]).index_copy_(0, self.slots, q)
        slots = slice(self.first, self.first + self.num_slots)
        # Views of the cache, not copies.
        keys, values = (cache[layer, slots, :, : self.longest] for cache in (self.keys, self.values))
        out = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=self.mask)
        return out[:, :, 0] if self.slots is None else out[self.slots, :, 0]


def _streamed(chunks: list[Chunk], keys: Tensor, values: Tensor) -> StreamedAttention:
    """All rows of single tokens and short chunks in one compiled call."""
    rows = [
        (chunk.place, end, not chunk.sequence.is_finished)
        for chunk in chunks
        for end in range(chunk.start + 1, chunk.start + chunk.num_tokens + 1)
    ]
    return StreamedAttention(keys, values, *zip(*rows, strict=True))


class _PromptChunk:
    """One call for one sequence: causal from the start, masked for a chunk in the middle of a prompt."""

    def __init__(self, chunk: Chunk, like: Tensor) -> None:
        self.place, self.num_tokens, self.end = chunk.place, chunk.num_tokens, chunk.start + chunk.num_tokens
        self.causal = chunk.start == 0 and chunk.num_tokens > 1
        self.mask = None
        if chunk.start and chunk.num_tokens > 1:
            self.mask = torch.full(
                (self.num_tokens, self.end), -torch.inf, dtype=like.dtype, device=like.device
            )
            self.mask.triu_(chunk.start + 1)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[self.place, :, : self.end][None],
            values[self.place, :, : self.end][None],
            attn_mask=self.mask,
            is_causal=self.causal,
        )
        return out[0].transpose(0, 1)


def _index(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)
