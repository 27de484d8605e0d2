"""The engines that a hard case is tried on, each with what a request gets from it when it is alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.kv import SlotCache
from llmserve.metrics import output_token_ids
from llmserve.padded import PaddedEngine
from llmserve.request import Request
from llmserve.run import Run

from . import tiny
from .build import tokens_by_rule


@dataclass(frozen=True)
class World:
    """`engine(slots)` takes one second a step; `alone(request)` are the tokens that the request must get."""

    name: str
    engine: Callable[..., Any]
    alone: Callable[[Request], list[int]]


class SteadyPadded(PaddedEngine, tiny.SteadyEngine):
    """Static batches with pads, on a clock of one second a step."""


def padded_engine(slots: int = 4, positions: int = tiny.POSITIONS) -> SteadyPadded:
    network = tiny.tiny_model()
    return SteadyPadded(network, SlotCache(network.config, slots, positions, network.dtype))


def simulated_engine(slots: int = 4, **more: Any) -> SimulatedEngine:
    """As long and with as many token ids as the tiny model."""
    more = {"vocab_size": tiny.VOCAB, **more}
    return SimulatedEngine(slots, tiny.POSITIONS, CostModel(overhead=1.0), **more)


_generated = cache(tiny.generate)

SIMULATED = World("simulated", simulated_engine, lambda request: tokens_by_rule(request, tiny.VOCAB))
BATCHED = World("batched", tiny.slot_engine, _generated)
PAGED = World("paged", tiny.paged_engine, _generated)
LOOP = World("loop", lambda slots=4: tiny.slot_engine(slots, attention="loop"), _generated)
PADDED = World("padded", padded_engine, _generated)
CAT = World("cat", tiny.cat_engine, _generated)

ANY_POLICY = (SIMULATED, BATCHED, LOOP, PAGED)  # the other two serve static batches only

every_world = pytest.mark.parametrize("world", ANY_POLICY, ids=lambda world: world.name)
every_cache = pytest.mark.parametrize("world", (*ANY_POLICY, PADDED, CAT), ids=lambda world: world.name)


def assert_as_alone(run: Run, requests: Sequence[Request], world: World) -> None:
    """These requests got exactly what each gets alone."""
    received = output_token_ids(run)
    assert {r.id: received[r.id] for r in requests} == {r.id: world.alone(r) for r in requests}
