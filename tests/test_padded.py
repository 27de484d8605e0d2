"""Padding costs time and memory and must change no token."""

from __future__ import annotations

import pytest
from helpers.tiny import POSITIONS, SteadyEngine, compute, generate, prompt_ids, sequence, tiny_model

from llmserve.kv import SlotCache
from llmserve.loop import serve
from llmserve.metrics import count_rows, output_token_ids
from llmserve.padded import PaddedEngine
from llmserve.policies import Continuous, Dynamic, Static
from llmserve.request import Chunk, Request


class SteadyPadded(PaddedEngine, SteadyEngine):
    pass


SHAPES = [(1, 1), (17, 9), (2, 20), (30, 14), (5, 1), (9, 18), (24, 6), (1, 16), (13, 22), (3, 3)]
REQUESTS = [
    Request(f"r{i}", prompt_ids(prompt, seed=i), output, arrival_time=2.0 * i)
    for i, (prompt, output) in enumerate(SHAPES)
]


def padded(slots: int = 4, positions: int = POSITIONS) -> SteadyPadded:
    network = tiny_model()
    return SteadyPadded(network, SlotCache(network.config, slots, positions, network.dtype))


@pytest.mark.parametrize("slots", [1, 3, 4, 8])
@pytest.mark.parametrize("policy", [Static, lambda slots: Dynamic(slots, 5.0)], ids=["static", "dynamic"])
def test_every_request_gets_the_tokens_it_gets_alone(policy, slots: int) -> None:
    run = serve(REQUESTS, policy(slots), padded(slots))
    assert output_token_ids(run) == {request.id: generate(request) for request in REQUESTS}
    assert (count_rows(run.log).zombie > 0) == (slots > 1)


def test_one_engine_serves_a_second_run_and_batches_in_any_order_of_places() -> None:
    engine = padded()
    first, second = (output_token_ids(serve(REQUESTS, Static(4), engine)) for _ in range(2))
    assert first == second
    prompts = [sequence(f"s{i}", prompt_ids(n, seed=i)) for i, n in enumerate((3, 11, 1))]
    straight = compute(engine, *[(seq, len(seq.token_ids), i) for i, seq in enumerate(prompts)])
    for seq in prompts:
        seq.num_computed_tokens = 0
    turned = compute(engine, *[(seq, len(seq.token_ids), i) for i, seq in reversed(list(enumerate(prompts)))])
    assert all(a.equal(b) for a, b in zip(straight, reversed(turned), strict=True))


def test_pads_go_through_the_products_and_into_the_cache() -> None:
    engine, seen = padded(), []
    model = engine.model
    engine.model = type("Watched", (), {
        "__getattr__": lambda _, name: getattr(model, name),
        "__call__": lambda _, tokens, *rest: seen.append(len(tokens)) or model(tokens, *rest),
    })()  # fmt: skip
    serve([Request("long", (1,) * 20, 3), Request("short", (2,) * 5, 3)], Static(2), engine)
    assert seen == [40, 2, 2]
    filled = (engine.cache.k[0].abs().sum(dim=(1, 3)) > 0).sum(dim=1)  # cache columns in use a slot
    assert filled.tolist()[:2] == [22, 22]


def test_a_policy_that_lets_requests_join_is_refused() -> None:
    with pytest.raises(ValueError, match="use Static or Dynamic"):
        serve(REQUESTS, Continuous(4), padded())


def test_a_row_too_long_with_its_pads_says_so() -> None:
    requests = [Request("long", (1,) * 20, 4), Request("short", (1,) * 4, 20)]
    assert len(output_token_ids(serve(requests, Static(2), padded(positions=40)))["short"]) == 20
    with pytest.raises(ValueError, match=r"31 tokens long, over max_model_len=30"):
        serve(requests, Static(2), padded(positions=30))


def test_a_chunk_in_the_middle_of_a_prompt_is_refused() -> None:
    engine, seq = padded(), sequence("s", prompt_ids(8, seed=1))
    with pytest.raises(ValueError, match="whole prompts together"):
        engine.step([Chunk(seq, 0, 4, 0)])
