"""`python -m tools cost`: measure the step times that are simulated with, and write down the prices."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmserve.hardware import machine
from llmserve.metrics import percentile, summarise
from llmserve.run import Run
from llmserve.settings import Settings
from tools.project import Project, write_last


def path(project: Project) -> Path:
    return project.root / "llmserve" / "data" / "cost.json"


def measure(project: Project, settings: Settings) -> None:
    """The headline workload under the six policies on the real engine; a cost model fitted to all steps."""
    # Heavy, and no other command of the tools needs them.
    import torch

    from llmserve.costmodel import CONTEXT
    from llmserve.fit import fit
    from llmserve.lab import Lab
    from llmserve.loop import serve
    from llmserve.measure import full_batch_decode_step
    from llmserve.playground import POLICIES, complete
    from llmserve.workload import HEADLINE

    torch.set_num_threads(settings.threads)
    values = complete({"slots": HEADLINE.max_num_seqs})
    engine = Lab(settings).engine(HEADLINE.max_num_seqs, HEADLINE.max_model_len)
    step = full_batch_decode_step(engine, CONTEXT)
    requests = HEADLINE.requests(step)
    contestants = {
        name: lambda made=made: serve(requests, made(values), engine) for name, made in POLICIES.items()
    }
    print(f"A full-batch decode step takes {1e3 * step:.1f} ms. Six policies ...", flush=True)
    # Not `interleave`: it takes a disturbed round again, and here a disturbed step is left out.
    runs = {name: contestant() for name, contestant in contestants.items()}
    kept = undisturbed(list(runs.values()))
    told = _told(settings, fit(kept).cost, sum(len(run.log) for run in kept))
    write_last(path(project), json.dumps(told, indent=1) + "\n")
    for name, run in runs.items():
        print(f"{name:10} {summarise(run).throughput:6.0f} tokens/s measured")
    print(
        f"Written to {project.relative(path(project))}: {told['fitted_to']}, the undisturbed ones", flush=True
    )


def undisturbed(runs: list[Run]) -> list[Run]:
    """The runs without those steps in which another process took some of the CPU's time."""
    from llmserve.measure import DISTURBED

    shares = [step.cpu_share for run in runs for step in run.log if step.cpu_share is not None]
    if not shares:
        return runs
    least = DISTURBED * percentile(shares, 90)
    return [replace(run, log=[s for s in run.log if (s.cpu_share or 0) >= least]) for run in runs]


def _told(settings: Settings, cost: Any, steps: int) -> dict[str, Any]:
    """What the page says about its prices; no paths, no host name."""
    prices = asdict(cost) | {"fitted": cost.fitted._asdict(), "jumps": [list(jump) for jump in cost.jumps]}
    return {
        "model": f"GPT-2 small, {settings.dtype}",
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "threads": settings.threads,
        "device": settings.device,
        "products": settings.products,
        "fitted_to": f"{steps} measured steps of six policies",
        "cost": prices,
    }
