"""Where the time of one step goes, by kind of operation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

from .measure import timed
from .memory import give_back
from .models.streamed import ATTENTION, PRODUCT

K = TypeVar("K", bound=Hashable)
PARTS = ("weight products", "vocabulary", "attention", "cache write", "norms", "small operations", "Python")

# The operations that Python calls directly, by the start of their names.
_PART_OF = {
    "mkldnn::_linear_pointwise": "weight products",
    "aten::linear": "weight products",
    PRODUCT: "weight products",
    ATTENTION: "attention",
    "aten::scaled_dot_product_attention": "attention",
    "aten::index_put_": "cache write",
    "aten::cat": "cache write",
    "aten::layer_norm": "norms",
    "aten::argmax": "vocabulary",
}


def profile_steps(steps: Mapping[K, Callable[[], object]], repeats: int = 5) -> dict[K, dict[str, float]]:
    """Seconds of each call of an engine's step by part (PARTS); on a CPU, where operations do not overlap.

    The steps are taken in turn, each once without and once with torch's profiler, so that a slow
    moment hits all of them alike. Operations are timed by the profiler. "Python" is what is left of
    the step's median without it: the model's and the engine's own lines, and the calls into torch.
    """
    whole: dict[K, list[float]] = {name: [] for name in steps}
    profiled: dict[K, list[dict[str, float]]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            # A profiled step leaves freed memory in pieces: 100 MB of them after three.
            give_back()
            step()  # a warm-up: what was given back has to be taken again
            whole[name].append(timed(step))
            profiled[name].append(_operations(step))
    return {name: _by_part(whole[name], profiled[name]) for name in steps}


def _by_part(whole: list[float], profiled: list[dict[str, float]]) -> dict[str, float]:
    parts = {part: median(one[part] for one in profiled) for part in PARTS}
    parts["Python"] = max(0.0, median(whole) - sum(parts.values()))
    return parts


def _operations(step: Callable[[], object]) -> dict[str, float]:
    """Seconds of one step's operations by part, from the profiler."""
    # Without shapes: to write them down takes memory, and bit by bit.
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    called = [event for event in profiler.events() if event.cpu_parent is None and "::" in event.name]
    products = [event for event in called if _PART_OF.get(event.name) == "weight products"]
    vocabulary = max(products, key=lambda event: event.time_range.start, default=None)  # a step's last one
    parts = dict.fromkeys(PARTS, 0.0)
    for event in called:
        part = "vocabulary" if event is vocabulary else _PART_OF.get(event.name, "small operations")
        parts[part] += event.cpu_time_total / 1e6
    return parts
