"""What a KV cache costs a step: appending by cat and in place, and whole steps with each cache."""

from __future__ import annotations

import torch

from .engine import Engine
from .kv import CatCache, SlotCache
from .measure import decode_chunks, in_turn, timed
from .models.gpt2 import GPT2, Config
from .request import Chunk

Readings = dict[str, list[float]]  # seconds by name, one a repeat


def cat_bytes(config: Config, batch: int, context: int, bytes_per_value: int = 4) -> int:
    """What torch.cat writes in one decode step: K and V of every token, old and new, in every layer."""
    return batch * (context + 1) * config.kv_bytes_per_token(bytes_per_value)


def append_seconds(model: GPT2, batch: int, context: int, repeats: int) -> Readings:
    """Append one token's K and V for `batch` sequences in all layers: by cat, and in place, in turn."""
    config, like = model.config, {"dtype": model.dtype, "device": model.device}
    shape = (batch, config.num_heads, context, config.head_dim)
    old = [torch.zeros(shape, **like) for _ in range(2 * config.num_layers)]
    new = torch.ones(batch, config.num_heads, 1, config.head_dim, **like)
    grown: list[torch.Tensor | None] = [None] * len(old)
    places, last = torch.arange(batch), torch.full((batch,), context - 1)

    def by_cat() -> None:
        for i, tensor in enumerate(old):
            grown[i] = torch.cat([tensor, new], dim=2)  # kept, as a cache keeps it until the next step

    def in_place() -> None:
        for tensor in old:
            tensor[places, :, last] = new[:, :, 0]

    calls = {"cat": by_cat, "in place": in_place}
    return in_turn({name: lambda call=call: timed(call) for name, call in calls.items()}, repeats)


def step_seconds(model: GPT2, batch: int, context: int, repeats: int) -> Readings:
    """Whole decode steps with a cat cache, and with slots under both forms of attention, in turn.

    The sequences grow by a token a step, so the readings are for `context` to `context + repeats`.
    """
    length = context + repeats + 1
    cat = Engine(model, filled_cat_cache(model, decode_chunks(batch, context)))
    slots = Engine(model, SlotCache(model.config, batch, length, model.dtype, model.device))
    sequences = cat.cache.members
    readings: Readings = {"cat": [], "slots, loop": [], "slots, batched": []}
    for turn in range(repeats + 1):
        chunks = [Chunk(s, s.num_computed_tokens, 1, place) for place, s in enumerate(sequences)]
        for name, taken in readings.items():
            if name != "cat":  # which has one form
                slots.cache.attention = name.removeprefix("slots, ")
            seconds = (cat if name == "cat" else slots).step(chunks).seconds
            if turn:  # the first is a warm-up
                taken.append(seconds)
        for sequence in sequences:
            sequence.num_computed_tokens += 1
            sequence.token_ids.append(0)
    return readings


def filled_cat_cache(model: GPT2, chunks: list[Chunk]) -> CatCache:
    """A cat cache in the middle of serving the sequences of these decode chunks."""
    config, context = model.config, chunks[0].start
    cache = CatCache(config, len(chunks), config.max_positions)
    shape = (len(chunks), config.num_heads, context, config.head_dim)
    for layer in range(config.num_layers):
        cache.k[layer] = torch.zeros(shape, dtype=model.dtype, device=model.device)
        cache.v[layer] = torch.zeros(shape, dtype=model.dtype, device=model.device)
    cache.members, cache.length = [chunk.sequence for chunk in chunks], context
    return cache
