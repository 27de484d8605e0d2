"""Prices of a step on the recorded machine, from the readings that come with the package."""

from __future__ import annotations

import csv
import json
from importlib import resources
from statistics import median

from .costmodel import CostModel

CONTEXT = 120  # cached tokens of each sequence in a full decode step, as the chapters measure it


def recorded_cost() -> CostModel:
    """A broken line through three recorded readings: flat up to the knee, then so much a token.

    flat   a decode step of eight rows: static's TPOT p50 of the six policies' race
    knee   the tokens at which arithmetic has caught up with streaming the weights
    far    the longest step of the chunked policy with a budget of 512 tokens

    Attention is inside `far`'s price of a token, and has none of its own. A model fitted to the steps of
    a run (`fit.fit`) knows more. RuntimeError if the package holds no such readings.
    """
    flat = _median("six", "tpot_p50", "Static")
    knee = _median("machine", "value", "predicted_knee")
    far = _median("long-prompts", "step_max", "Chunked(512)") / 1e3  # recorded in milliseconds
    per_token = max(0.0, far - flat) / max(1.0, 512 - knee)
    weights = min(flat, knee * per_token)
    return CostModel(overhead=flat - weights, weights=weights, per_token=per_token)


def _median(table: str, metric: str, row: str) -> float:
    found = [
        float(line["value"])
        for line in csv.DictReader(_text("readings.csv").splitlines())
        if (line["table"], line["metric"], line["row"]) == (table, metric, row)
    ]
    if not found:
        raise RuntimeError(
            f"no recorded {metric} of {row} in table {table}: run `make record`, or give an engine"
        )
    return median(found)


def recorded_on() -> str:
    """The machine of the recorded run, in a few words."""
    stamp = json.loads(_text("machine.json"))
    return f"{stamp['cpu']}, {stamp['cores']} cores, recorded {stamp['date']}"


def _text(name: str) -> str:
    path = resources.files("llmserve").joinpath("data", "recorded", name)
    if not path.is_file():
        raise RuntimeError(f"this llmserve has no recorded {name}: run `make record`")
    return path.read_text(encoding="utf-8")
