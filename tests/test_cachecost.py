"""What the two caches cost, and that the measured engines do what the real ones do."""

from __future__ import annotations

import torch
from helpers.tiny import tiny_model

from llmserve.cachecost import append_seconds, cat_bytes, filled_cat_cache, step_seconds
from llmserve.engine import Engine
from llmserve.kv import CatCache
from llmserve.measure import decode_chunks
from llmserve.models.gpt2 import Config


def test_the_copy_of_cat_is_the_posts_formula() -> None:
    assert cat_bytes(Config(), batch=16, context=248) == 2 * 12 * 16 * 249 * 768 * 4
    assert round(cat_bytes(Config(), 16, 32) / 1e6) == 39


def test_a_filled_cat_cache_goes_on_decoding() -> None:
    model, chunks = tiny_model(), decode_chunks(batch=3, context=6)
    for chunk in chunks:
        chunk.sequence.token_ids[:] = [token % 90 for token in chunk.sequence.token_ids]
    cache = filled_cat_cache(model, chunks)
    assert cache.k[0].shape[2] == 5
    result = Engine(model, cache).step(chunks)
    assert len(result.token_ids) == 3
    assert cache.length == cache.v[-1].shape[2] == 6


def test_every_cache_is_timed_as_often() -> None:
    model = tiny_model()
    append = append_seconds(model, batch=2, context=6, repeats=3)
    assert {name: len(taken) for name, taken in append.items()} == {"cat": 3, "in place": 3}
    step = step_seconds(model, batch=2, context=6, repeats=3)
    assert {name: len(taken) for name, taken in step.items()} == {
        "cat": 3,
        "slots, loop": 3,
        "slots, batched": 3,
    }


def test_a_reset_forgets_the_batch() -> None:
    model = tiny_model()
    cache = filled_cat_cache(model, decode_chunks(2, 6))
    assert isinstance(cache, CatCache)
    Engine(model, cache).new_pool()
    assert (cache.length, cache.members, cache.k) == (0, [], [None] * model.config.num_layers)
    assert not torch.is_tensor(cache.v[0])
