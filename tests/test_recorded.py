"""The recorded prices: what `python -m tools cost` writes is what the package simulates with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from llmserve import playtext, recorded
from llmserve.costmodel import CONTEXT, CostModel, Work
from llmserve.measure import decode_chunks
from llmserve.playground import simulate
from llmserve.policies import Continuous, Static
from llmserve.race import race
from llmserve.settings import Settings
from llmserve.workload import HEADLINE
from tools import cost as tool

MADE = CostModel(0.01, 0.02, 3e-4, 4e-7, 5e-4, 6e-6, 7e-3, ((8, 0.002), (12, 0.001)), Work(9, 8, 7, 6, 5))


def written(cost: CostModel, **more: Any) -> dict[str, Any]:
    """What cost.json would hold."""
    return json.loads(json.dumps(tool._told(Settings.from_env({}), cost, 1234) | more))


def test_the_prices_come_back_as_the_tool_wrote_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "record", lambda: written(MADE))
    assert recorded.recorded_cost.__wrapped__() == MADE


def test_a_record_may_hold_readings_and_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(MADE, jumps=(), fitted=None)
    by_hand = written(MADE, readings=[{"what": "one row", "ms": 30.0}])
    by_hand["cost"] |= {"jumps": [], "fitted": None}
    monkeypatch.setattr(recorded, "record", lambda: by_hand)
    assert recorded.recorded_cost.__wrapped__() == plain


def test_a_full_decode_step_is_the_chapters() -> None:
    assert MADE.full_decode_step(8) == MADE.seconds(decode_chunks(8, CONTEXT))
    assert MADE.full_decode_step(3, 64) == MADE.price(Work(3, 3, 3 * 64, 3 * 64, 0))
    shipped = recorded.recorded_cost()
    assert 0 < shipped.full_decode_step(1) < shipped.full_decode_step(16)


def test_the_race_and_the_playground_simulate_with_the_same_prices() -> None:
    raced = race([Static(8), Continuous(8)])
    played = simulate({"requests": HEADLINE.num_requests})  # its defaults are the headline workload
    for entry, told in zip(raced.entries, played["runs"].values(), strict=True):
        assert entry.summary.throughput == told["metrics"]["throughput"]
        assert entry.summary.ttft_p99 == told["metrics"]["ttft_p99"]


def test_both_say_the_machine_and_the_day() -> None:
    made = recorded.record()
    told = f"{made['machine']['cpu']}, {made['machine']['cores']} cores, measured {made['date']}"
    assert told in race([Static(8)]).note
    assert told in playtext.sentences(simulate({"requests": 8}))[0]
