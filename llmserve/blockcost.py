"""What blocks cost a step, and what a preempted sequence costs: read again, computed again or copied."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from .engine import Engine
from .kv import PagedCache, SlotCache
from .measure import decode_chunks, in_turn, prefill_chunks, timed
from .models.gpt2 import GPT2
from .models.linear import why_not_streamed
from .request import Chunk

Readings = dict[tuple[str, int], list[float]]  # seconds by (form, context), one a repeat


def step_seconds(
    model: GPT2, batch: int, contexts: Iterable[int], sizes: Iterable[int], repeats: int
) -> Readings:
    """Decode steps of `batch` sequences with slots, and with blocks of each size scattered over memory.

    In turn, so that a slow moment hits all alike. All caches lie in the same memory, since what a step
    costs does not depend on what numbers it reads: so the cache of one is not still at hand for the next.
    """
    contexts, sizes = list(contexts), list(sizes)
    length = math.lcm(*sizes) * -(-max(contexts) // math.lcm(*sizes))  # so that all blocks divide it
    slots = SlotCache(model.config, batch, length, model.dtype, model.device)
    for tensor in (slots.k, slots.v):
        tensor.fill_(0.5)  # memory that was never written is not read from memory either
    engines: dict[str, tuple[Engine, int | None]] = {"slots": (Engine(model, slots), None)}
    for form in ("gathered", "streamed"):
        if form == "gathered" or why_not_streamed(model.dtype, model.device, model.config.head_dim) is None:
            for size in sizes:
                paged = PagedCache(
                    model.config, batch * length // size, size, length, model.dtype, model.device, form
                )
                paged.lie_in(slots)
                engines[f"{form}, blocks of {size}"] = (Engine(model, paged), size)
    calls = {}
    for name, (engine, size) in engines.items():
        for context in contexts:
            chunks = decode_chunks(batch, context)
            if size:
                chunks = scattered(chunks, size, engine.cache.num_blocks)
            calls[name, context] = partial(_seconds, engine, chunks)
    return in_turn(calls, repeats)


def _seconds(engine: Engine, chunks: list[Chunk]) -> float:
    return engine.step(chunks).seconds


def scattered(chunks: Iterable[Chunk], size: int, num_blocks: int, seed: int = 0) -> list[Chunk]:
    """The same chunks with block tables that are drawn without order, as a long run leaves them."""
    blocks = list(range(num_blocks))
    random.Random(seed).shuffle(blocks)
    placed = []
    for chunk in chunks:
        count = -(-(chunk.start + chunk.num_tokens) // size)
        table, blocks = tuple(blocks[:count]), blocks[count:]
        placed.append(chunk._replace(place=table))
    return placed


def return_seconds(
    model: GPT2, contexts: Iterable[int], block_size: int, repeats: int
) -> Mapping[tuple[str, int], list[float]]:
    """Seconds to bring one preempted sequence of so many tokens back: computed again, or its blocks copied
    to other memory when it leaves and back when it returns."""
    contexts = list(contexts)
    num_blocks = 2 * -(-max(contexts) // block_size)
    cache = PagedCache(model.config, num_blocks, block_size, dtype=model.dtype, device=model.device)
    for tensor in (cache.k, cache.v):
        tensor.fill_(0.5)
    engine = Engine(model, cache)
    calls = {}
    for context in contexts:
        chunks = scattered(prefill_chunks([context]), block_size, num_blocks)
        blocks = torch.tensor(chunks[0].place, device=model.device)
        calls["computed again", context] = partial(_seconds, engine, chunks)
        calls["copied out and back", context] = partial(timed, partial(_swap, cache, blocks))
    return in_turn(calls, repeats)


def _swap(cache: PagedCache, blocks: Tensor) -> None:
    for tensor in (cache.k, cache.v):
        aside = tensor.index_select(1, blocks)
        tensor.index_copy_(1, blocks, aside)
