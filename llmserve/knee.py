"""The time of a step over its tokens: where the curve bends, and which products decide that."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from .engine import Engine
from .measure import in_turn, prefill_chunks, timed
from .metrics import percentile
from .models.gpt2 import GPT2
from .models.linear import Linear

Readings = Mapping[int, Sequence[float]]  # tokens -> seconds, one a turn


@dataclass(frozen=True)
class Knee:
    """seconds = fixed + per_token x max(tokens, knee): flat, then a line."""

    tokens: float
    fixed: float
    per_token: float

    @property
    def flat(self) -> float:
        """Seconds of a step left of the knee."""
        return self.seconds(0)

    def seconds(self, tokens: float) -> float:
        return self.fixed + self.per_token * max(tokens, self.tokens)


def step_curve(engine: Engine, tokens: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """Seconds of a step that computes one prompt of so many tokens, interleaved."""
    work = {n: prefill_chunks([n]) for n in tokens}
    return in_turn({n: lambda n=n: engine.step(work[n]).seconds for n in tokens}, repeats)


def fit_knee(readings: Readings) -> Knee:
    """The broken line through the medians with the smallest squared relative error.

    Every knee of a fine grid is tried; for each the two other numbers have a closed form.
    """
    n = np.array(sorted(readings), dtype=float)
    seconds = np.array([median(readings[int(tokens)]) for tokens in n])
    knees = np.geomspace(n[0], n[-1], 600)
    reached = np.maximum(n, knees[:, None])  # (knees, points)
    weight = 1 / seconds**2
    x, y, xx, xy = (
        (weight * values).sum(axis=-1)
        for values in (reached, seconds + 0 * reached, reached**2, reached * seconds)
    )
    total = weight.sum()
    spread = total * xx - x * x
    bends = spread > 1e-9 * total * xx  # else all points lie left of the knee, and the line is flat
    slope = np.where(bends, (total * xy - x * y) / np.where(bends, spread, 1.0), 0.0).clip(min=0.0)
    # No step has a negative fixed cost: where the line would need one, it goes through the origin.
    slope = np.where(slope * x > y, xy / xx, slope)
    fixed = np.maximum(0.0, (y - slope * x) / total)
    error = (weight * (fixed[:, None] + slope[:, None] * reached - seconds) ** 2).sum(axis=1)
    best = int(error.argmin())
    return Knee(float(knees[best]), float(fixed[best]), float(slope[best]))


def knee_range(readings: Readings, samples: int = 200, seed: int = 0) -> tuple[float, float]:
    """How uncertain the knee is: the middle 90% of fits to turns drawn anew from the same readings."""
    draws = random.Random(seed)
    turns = len(next(iter(readings.values())))
    found = []
    for _ in range(samples):
        chosen = [int(draws.random() * turns) for _ in range(turns)]
        found.append(
            fit_knee({n: [values[turn] for turn in chosen] for n, values in readings.items()}).tokens
        )
    return percentile(found, 5), percentile(found, 95)


@dataclass(frozen=True)
class Product:
    """One kind of weight product, over all layers: its weights, and seconds by rows."""

    name: str
    weights: int
    readings: Readings

    def bandwidth(self, rows: int = 1) -> float:
        """Bytes of float32 weights per second at few rows."""
        return 4 * self.weights / median(self.readings[rows])

    def flops(self, rows: int) -> float:
        """FLOP per second at many rows."""
        return 2 * rows * self.weights / median(self.readings[rows])


def _multiply(products: Sequence[Linear], x: Tensor) -> None:
    """All of them in turn; each result goes before the next one comes, as in a step."""
    for product in products:
        product(x)


def product_curves(model: GPT2, rows: Sequence[int], repeats: int) -> list[Product]:
    """Each kind of weight product of the model, timed alone at so many rows, all layers' weights in turn."""
    h = model.config.hidden
    layers = {
        "attention in": ([block.qkv for block in model.blocks], h, 3 * h),
        "attention out": ([block.attention_out for block in model.blocks], h, h),
        "MLP up": ([block.mlp_up for block in model.blocks], h, 4 * h),
        "MLP down": ([block.mlp_down for block in model.blocks], 4 * h, h),
        "vocabulary": ([model.vocabulary], h, model.config.vocab_size),
    }
    like = {"dtype": model.dtype, "device": model.device}
    inputs = {(n, inner): torch.randn(n, inner, **like) for n in rows for inner in (h, 4 * h)}

    def call(name: str, n: int) -> float:
        products, inner, _ = layers[name]
        return timed(lambda: _multiply(products, inputs[n, inner]))

    with torch.inference_mode():
        pairs = [(name, n) for name in layers for n in rows]
        seconds = in_turn({pair: lambda pair=pair: call(*pair) for pair in pairs}, repeats)
    return [
        Product(name, len(products) * inner * outer, {n: seconds[name, n] for n in rows})
        for name, (products, inner, outer) in layers.items()
    ]


def together(products: Sequence[Product], name: str) -> Product:
    """Several kinds of product as one: weights and seconds added up, turn by turn."""
    readings = {
        n: [sum(turn) for turn in zip(*(product.readings[n] for product in products), strict=True)]
        for n in products[0].readings
    }
    return Product(name, sum(product.weights for product in products), readings)
