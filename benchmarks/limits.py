"""The least that a decode step and a prefill can take on this machine, and the engine's multiple of it.

python benchmarks/limits.py [linear attention]        about two minutes and 2.3 GB

The floor is computed: bytes that must be read over the bandwidth, or operations that must be done over the
matrix rate, whichever takes longer. What a machine gives changes from one minute to the next, so both are
measured in each turn, and a step is compared with the floor of its own turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median

import torch

from llmserve.engine import Engine
from llmserve.hardware import machine
from llmserve.kv import SlotCache
from llmserve.measure import decode_chunks, in_turn, prefill_chunks, timed
from llmserve.models.gpt2 import GPT2
from llmserve.models.linear import choose_linear
from llmserve.models.load import load_gpt2, resolve_weights
from llmserve.roofline import Peak, StepWork
from llmserve.settings import Settings

BATCHES, CONTEXT = (1, 2, 4, 8, 16, 32, 64), 100
PROMPTS = (16, 32, 64, 128, 256, 512)
TURNS = 15
READ = 2**27  # numbers: as many as the weights, and far more than any cache
ROWS, INNER, OUTER = 2048, 768, 3072  # a product that computes rather than reads
Size = tuple[str, int]


def main() -> None:
    settings = Settings.from_env()
    torch.set_num_threads(settings.threads)
    linear, attention = sys.argv[1:3] if len(sys.argv) > 2 else ("auto", "batched")
    model = load_gpt2(resolve_weights(settings.weights), settings.dtype, settings.device, linear)
    cache = SlotCache(model.config, max(BATCHES), max(PROMPTS), model.dtype, model.device, attention)
    engine = Engine(model, cache)
    steps = {("decode", batch): decode_chunks(batch, CONTEXT) for batch in BATCHES}
    steps |= {("prefill", length): prefill_chunks([length]) for length in PROMPTS}
    calls = {size: lambda chunks=chunks: engine.step(chunks).seconds for size, chunks in steps.items()}
    with torch.inference_mode():
        taken = in_turn({**peak_calls(model), **calls}, TURNS)
    peaks = [
        Peak(READ * model.dtype.itemsize / read, 2 * ROWS * INNER * OUTER / computed)
        for read, computed in zip(taken["read"], taken["compute"], strict=True)
    ]
    report(peaks, StepWork.of(model.config, model.dtype.itemsize), {size: taken[size] for size in steps})


def peak_calls(model: GPT2) -> dict[str, Callable[[], float]]:
    """What measures the machine: reading as much as the weights, and one large product."""
    like = {"dtype": model.dtype, "device": model.device}
    stream, x = torch.ones(READ, **like), torch.randn(ROWS, INNER, **like)
    product = choose_linear("auto", **like)(torch.randn(OUTER, INNER, **like))
    return {"read": lambda: timed(stream.sum), "compute": lambda: timed(lambda: product(x))}


def report(peaks: list[Peak], work: StepWork, taken: dict[Size, list[float]]) -> None:
    bandwidths, rates = ([getattr(p, name) / 1e9 for p in peaks] for name in ("bandwidth", "flops"))
    print(f"{machine()['cpu']}, {torch.get_num_threads()} threads")
    for name, values in (("GB/s", bandwidths), ("GFLOP/s", rates)):
        print(f"{median(values):.0f} {name} [{min(values):.0f}, {max(values):.0f}]")
    print(f"\n{'':8}{'size':>6}{'floor, ms':>11}{'step, ms':>10}{'multiple':>10}")
    for (kind, size), seconds in taken.items():
        floors = [least_seconds(peak, work, kind, size) for peak in peaks]
        multiples = sorted(step / floor for step, floor in zip(seconds, floors, strict=True))
        print(
            f"{kind:8}{size:6}{median(floors) * 1e3:11.1f}{median(seconds) * 1e3:10.1f}"
            f"{median(multiples):10.2f} [{multiples[0]:.2f}, {multiples[-1]:.2f}]"
        )


def least_seconds(peak: Peak, work: StepWork, kind: str, size: int) -> float:
    """Of a decode step of so many sequences, or of the prefill of one prompt of so many tokens."""
    if kind == "decode":
        return work.floor(peak, size, CONTEXT)
    read = work.weight_bytes + size * work.kv_bytes_per_token
    return max(read / peak.bandwidth, work.prefill_flops(1, size) / peak.flops)


if __name__ == "__main__":
    main()
