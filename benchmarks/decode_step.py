"""A decode step of 8 sequences in each form of the products and of the attention.

python benchmarks/decode_step.py        about a minute and 2.4 GB; prints ratios measured in one run
"""

from __future__ import annotations

from statistics import median

import torch

from llmserve.engine import Engine
from llmserve.kv import SlotCache
from llmserve.measure import decode_chunks
from llmserve.models.load import load_gpt2
from llmserve.settings import Settings

BATCH, CONTEXT, TURNS, WARM_UP = 8, 100, 40, 3
ENGINES = {
    "streamed": ("streamed", "streamed"),
    "packed, batched": ("packed", "batched"),
    "plain, loop": ("plain", "loop"),
}


def main() -> None:
    settings = Settings.from_env()
    torch.set_num_threads(settings.threads)
    engines = {}
    for name, (linear, attention) in ENGINES.items():
        model = load_gpt2(settings.weights, settings.dtype, settings.device, linear)
        cache = SlotCache(model.config, BATCH, CONTEXT, model.dtype, model.device, attention)
        engines[name] = Engine(model, cache)
    chunks = decode_chunks(BATCH, CONTEXT)
    results = {name: [] for name in ENGINES}
    for _ in range(TURNS + WARM_UP):
        for name, engine in engines.items():
            results[name].append(engine.step(chunks))
    for name, steps in results.items():
        del steps[:WARM_UP]
        seconds = sorted(step.seconds * 1e3 for step in steps)
        share = median(step.cpu_share for step in steps)
        print(
            f"{name:16} {median(seconds):6.1f} ms"
            f"  [{seconds[0]:.1f}, {seconds[-1]:.1f}]  CPU share {share:.2f}"
        )
    plain = median(step.seconds for step in results["plain, loop"])
    ratios = [f"{name} {median(s.seconds for s in steps) / plain:.2f}" for name, steps in results.items()]
    print(f"of plain: {'; '.join(ratios)} (batch {BATCH}, context {CONTEXT}, {TURNS} interleaved turns)")


if __name__ == "__main__":
    main()
