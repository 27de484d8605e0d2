"""A sweep of six policies over 17 loads with 3 seeds, 200 requests a run, on all cores of this process.

python benchmarks/sweep.py        under a minute; prints seconds, and ratios measured in one run
"""

from __future__ import annotations

from time import perf_counter

from llmserve.costmodel import CostModel, SimulatedEngine
from llmserve.loop import serve
from llmserve.metrics import SLO, summarise
from llmserve.policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Static
from llmserve.settings import available_cores
from llmserve.sweep import Point, sweep
from llmserve.workload import HEADLINE

POLICIES = (Static(8), Dynamic(8, 0.3), Bucketed(8), Continuous(8), Mixed(8), Chunked(8, 128))
LOADS = [0.1 + 1.4 * i / 16 for i in range(17)]
SEEDS = range(3)
DECODE_STEP = 0.04
COST = CostModel(overhead=0.004, weights=0.03, per_token=0.0012, per_context=1e-6, per_row=0.0004)


def main() -> None:
    grid = [Point(p, HEADLINE.with_(num_requests=200, load=load)) for load in LOADS for p in POLICIES]
    engine, slo = (
        SimulatedEngine(HEADLINE.max_num_seqs, HEADLINE.max_model_len, COST),
        SLO.relative(DECODE_STEP),
    )

    started = perf_counter()
    table = sweep(grid, SEEDS, engine, DECODE_STEP, slo)
    total = perf_counter() - started
    print(f"{len(table)} runs on {available_cores()} cores: {total:.1f} s with start-up and summaries")

    # The same runs of one seed, in this process, in parts.
    draw = loop = summary = 0.0
    steps = 0
    for point in grid:
        times = [perf_counter()]
        requests = point.workload.with_(seed=SEEDS[0]).requests(DECODE_STEP)
        times.append(perf_counter())
        run = serve(requests, point.policy, engine)
        times.append(perf_counter())
        summarise(run, slo)
        times.append(perf_counter())
        draw, loop, summary = (
            spent + end - start
            for spent, start, end in zip((draw, loop, summary), times, times[1:], strict=False)
        )
        steps += len(run.log)
    print(f"one seed in one process: {steps} steps in {draw + loop + summary:.1f} s")
    print(
        f"a step: {(draw + loop + summary) / steps * 1e6:.1f} us, of which the loop {loop / steps * 1e6:.1f}"
    )
    print(f"loop / summaries {loop / summary:.1f}, loop / drawing the requests {loop / draw:.1f}")


if __name__ == "__main__":
    main()
