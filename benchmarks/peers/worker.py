"""What every engine's script shares: it prepares once, then runs the workload each time it is told to.

A script runs in an environment of its own, so this file imports the standard library only. It is started
with a folder that holds `weights/` (as Hugging Face saves a GPT-2), `workload.json` and room for its own
files. On each line "run" of standard input it answers with one line, "@" and JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they come, all there at the start; exactly so many tokens for each."""

    prompts: list[list[int]]
    max_tokens: list[int]
    max_num_seqs: int
    threads: int


@dataclass
class Outcome:
    """Of one run: each request's output tokens, in order, and what the engine says of its own schedule."""

    token_ids: list[list[int]]
    steps: int | None = None  # calls of the model that this run took
    most_at_once: int | None = None  # sequences in one step, as counted by or through the engine
    notes: dict[str, str] = field(default_factory=dict)


def serve(prepare: Callable[[Path, Workload], tuple[str, Callable[[], Outcome]]]) -> None:
    """prepare(folder, workload) -> the engine's name with its version, and a call that runs the workload."""
    folder = Path(sys.argv[1])
    workload = Workload(**json.loads((folder / "workload.json").read_text()))
    name, run = prepare(folder, workload)
    tell({"engine": name})
    for line in sys.stdin:
        if line.strip() != "run":
            break
        wall, cpu = time.perf_counter(), time.process_time()
        outcome = run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        tell({"seconds": wall, "cpu_share": cpu / (wall * workload.threads), **asdict(outcome), **memory()})


def memory() -> dict[str, int]:
    """The most that this process, or one of its children, has held resident."""
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"resident_bytes": used * (1 if sys.platform == "darwin" else 1024)}


def tell(fact: dict) -> None:
    print("@" + json.dumps(fact), flush=True)
