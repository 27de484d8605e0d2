"""Where the time of one step goes, by kind of operation."""

from __future__ import annotations

from statistics import median

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from .engine import Engine
from .measure import timed
from .request import Chunk

PARTS = ("weight products", "vocabulary", "attention", "cache write", "norms", "small operations", "Python")

# The operations that Python calls directly, by the start of their names.
_PART_OF = {
    "mkldnn::_linear_pointwise": "weight products",
    "aten::linear": "weight products",
    "aten::scaled_dot_product_attention": "attention",
    "aten::index_put_": "cache write",
    "aten::cat": "cache write",
    "aten::layer_norm": "norms",
    "aten::argmax": "vocabulary",
}


def profile_step(engine: Engine, chunks: list[Chunk], repeats: int = 5) -> dict[str, float]:
    """Seconds of one step by part (PARTS); on a CPU, where operations run one after the other.

    Operations are timed by torch's profiler. "Python" is what is left of the step's median without
    the profiler: the model's and the engine's own lines, and the calls into torch.
    """
    for _ in range(2):
        engine.step(chunks)
    whole, profiled = [], []
    for _ in range(repeats):  # in turn, so that a slow moment hits both alike
        whole.append(timed(lambda: engine.step(chunks)))
        profiled.append(_operations(engine, chunks))
    parts = {name: median(one[name] for one in profiled) for name in PARTS}
    parts["Python"] = max(0.0, median(whole) - sum(parts.values()))
    return parts


def _operations(engine: Engine, chunks: list[Chunk]) -> dict[str, float]:
    """Seconds of one step's operations by part, from the profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        engine.step(chunks)
    parts = dict.fromkeys(PARTS, 0.0)
    for event in profiler.events():
        if event.cpu_parent is None and "::" in event.name:
            parts[_part(event, engine.vocab_size)] += event.cpu_time_total / 1e6
    return parts


def _part(event: FunctionEvent, vocab_size: int) -> str:
    part = _PART_OF.get(event.name, "small operations")
    sizes = [size for shape in event.input_shapes for size in shape or []]
    return "vocabulary" if part == "weight products" and vocab_size in sizes else part
