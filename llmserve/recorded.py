"""The recorded prices of a step, which `python -m tools cost` measures: they come with the package."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from .costmodel import CostModel, Work


@lru_cache
def record() -> dict[str, Any]:
    """The prices with all that is known of them: model, machine, date, and what they were fitted to."""
    path = resources.files("llmserve").joinpath("data", "cost.json")
    return json.loads(path.read_text(encoding="utf-8"))


@lru_cache
def recorded_cost() -> CostModel:
    """The recorded prices, in seconds."""
    given = record()["cost"]
    jumps = tuple((tokens, seconds) for tokens, seconds in given["jumps"])
    fitted = Work(**given["fitted"]) if given["fitted"] else None
    return CostModel(**{**given, "jumps": jumps, "fitted": fitted})


def recorded_on() -> str:
    """The machine that they were measured on, in a few words."""
    made = record()
    return f"{made['machine']['cpu']}, {made['machine']['cores']} cores, measured {made['date']}"
