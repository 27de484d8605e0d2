"""What the slot and the paged cache share: two tensors in pieces, a step taken apart for attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory import zeros
from ..models.gpt2 import Attend, Config
from ..models.linear import why_not_streamed
from ..models.streamed import StreamedAttention
from ..pool import Pool
from ..request import Chunk, whole

Read = Callable[[Tensor], Tensor]  # a layer's keys or values -> what some rows attend to
Group = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q, k, v) -> attention of some rows


class TensorCache(ABC):
    """K and V as (layers, pieces, heads, length, head_dim) each.

    A piece holds `length` neighbouring positions of a sequence: a slot is one piece with room for all of
    them, blocks are many. Subclasses say which pieces are whose, and read them in forms of their own.
    """

    FORMS: Mapping[
        str, int
    ]  # the forms of attention: up to how many tokens a chunk shares one call with others

    def __init__(
        self,
        config: Config,
        pieces: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device | str,
        attention: str,
    ) -> None:
        if attention not in self.FORMS:
            raise ValueError(f"attention={attention!r}: choose one of {', '.join(self.FORMS)}")
        reason = why_not_streamed(dtype, device, config.head_dim) if attention == "streamed" else None
        if reason:
            raise ValueError(
                f"attention='streamed' cannot be used here: {reason}; use {next(iter(self.FORMS))!r}"
            )
        self.attention, self.length = attention, length
        shape = (config.num_layers, pieces, config.num_heads, length, config.head_dim)
        # Zeros, not empty: a masked row of a piece never used must not turn up a NaN.
        self.k, self.v = (zeros(shape, dtype, device) for _ in range(2))
        self._spoiled: set[int] = set()

    def lie_in(self, other: TensorCache) -> None:
        """Take the memory of another cache of equal size, for runs that take turns; else ValueError."""
        if self.k.numel() != other.k.numel() or self.k.dtype != other.k.dtype:
            raise ValueError(
                f"{self.k.numel()} numbers of {self.k.dtype} cannot lie where {other.k.numel()} of "
                f"{other.k.dtype} do; make both caches of one size and dtype"
            )
        self.k, self.v = other.k.view(self.k.shape), other.v.view(self.v.shape)

    @abstractmethod
    def new_pool(self) -> Pool:
        """An empty pool for a new run."""

    @abstractmethod
    def pieces(self, place: Any) -> Sequence[int]:
        """The pieces of a sequence with this place, in order."""

    @abstractmethod
    def group(self, chunks: list[Chunk]) -> Group:
        """Attention of single-token chunks in one call; their K and V are written already."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Read:
        """How to read one sequence as far as this chunk's end: (1, heads, tokens, head_dim)."""

    def reset(self) -> None:
        """A new run. A piece is read no further than its holder has written, so numbers may stay."""
        self._clear(self._spoiled)

    def spoil(self, places: Iterable[Any]) -> None:
        """These may hold NaN, which no mask hides (0 x NaN is NaN): cleared for their next holders."""
        self._spoiled.update(piece for place in places for piece in self.pieces(place))

    def _clear(self, pieces: Iterable[int]) -> None:
        for piece in list(pieces):
            self.k[:, piece], self.v[:, piece] = 0, 0
            self._spoiled.discard(piece)

    def _entered(self, chunk: Chunk) -> Sequence[int]:
        """The pieces that this chunk is the first to write to."""
        first, end = -(-chunk.start // self.length), -(-(chunk.start + chunk.num_tokens) // self.length)
        return self.pieces(chunk.place)[first:end]

    def begin_step(self, chunks: list[Chunk], positions: Tensor) -> Attend:
        """Work out once what every layer of this step needs; returns its attend(layer, q, k, v).

        The chunks' tokens lie one after the other in `positions` (T,), single-token chunks first
        and in order of place.
        """
        if self._spoiled:
            entered = {piece for chunk in chunks for piece in self._entered(chunk)}
            self._clear(self._spoiled & entered)
        together = list(takewhile(lambda chunk: chunk.num_tokens <= self.FORMS[self.attention], chunks))
        rows, others = sum(chunk.num_tokens for chunk in together), chunks[len(together) :]
        streamed = self.attention == "streamed"  # writes its own rows
        group = None
        if together:
            group = self._streamed(together) if streamed else self.group(together)
        if streamed and not others:
            return group
        first, unwritten = (rows, others) if streamed else (0, chunks)
        write = self._write_plan(unwritten, positions[first:]) if unwritten else None
        alone = [_PromptChunk(chunk, self.read(chunk), self.k) for chunk in others]

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

    def _streamed(self, chunks: list[Chunk]) -> StreamedAttention:
        """All rows of single tokens and short chunks in one compiled call."""
        rows = [
            (self.pieces(chunk.place), end, not chunk.sequence.is_finished)
            for chunk in chunks
            for end in range(chunk.start + 1, chunk.start + chunk.num_tokens + 1)
        ]
        return StreamedAttention(self.k, self.v, *zip(*rows, strict=True))

    def _write_plan(self, chunks: list[Chunk], positions: Tensor) -> _WritePlan:
        live = [not chunk.sequence.is_finished for chunk in chunks for _ in range(chunk.num_tokens)]
        pieces = []
        for chunk in chunks:
            of = self.pieces(chunk.place)
            ends = range(chunk.start, chunk.start + chunk.num_tokens)
            pieces += [of[position // self.length] for position in ends]
        return _WritePlan(live, index(pieces, positions), positions % self.length)


class _WritePlan:
    """Where the step's K and V go. A zombie row's are in the cache already and stay as they are."""

    def __init__(self, live: list[bool], pieces: Tensor, offsets: Tensor) -> None:
        self.rows, self.pieces, self.offsets = None, pieces, offsets
        if not all(live):
            self.rows = index([row for row, is_live in enumerate(live) if is_live], pieces)
            self.pieces, self.offsets = pieces[self.rows], offsets[self.rows]

    def __call__(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor) -> None:
        if self.rows is not None:
            k, v = k[self.rows], v[self.rows]
        keys[self.pieces, :, self.offsets] = k
        values[self.pieces, :, self.offsets] = v


class _PromptChunk:
    """One call for one sequence: causal from the start, masked for a chunk in the middle of a prompt."""

    def __init__(self, chunk: Chunk, read: Read, like: Tensor) -> None:
        self.read, self.num_tokens, end = read, chunk.num_tokens, chunk.start + chunk.num_tokens
        self.causal = chunk.start == 0 and chunk.num_tokens > 1
        self.mask = None
        if chunk.start and chunk.num_tokens > 1:
            self.mask = torch.full((self.num_tokens, end), -torch.inf, dtype=like.dtype, device=like.device)
            self.mask.triu_(chunk.start + 1)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = q.transpose(0, 1)[None], self.read(keys), self.read(values)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return out[0].transpose(0, 1)


def beyond(ends: Sequence[int], longest: int, like: Tensor) -> Tensor:
    """Additive mask (rows, 1, 1, longest) that hides what lies beyond each row's end."""
    hidden = torch.arange(longest, device=like.device) >= index(ends, like)[:, None]
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -torch.inf)[:, None, None]


def index(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)


def check_size(config: Config, name: str, count: int, max_model_len: int) -> None:
    """ValueError for a cache of nothing, or of more positions than the model knows."""
    if (whole(count) or 0) < 1:
        raise ValueError(f"{name}={count!r}: a cache needs a whole number of them, at least 1")
    if not 1 <= (whole(max_model_len) or 0) <= config.max_positions:
        raise ValueError(
            f"max_model_len={max_model_len!r}: the model knows positions for 1 to "
            f"{config.max_positions} tokens; choose a length within that"
        )
