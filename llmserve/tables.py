"""A Run as tidy pandas tables: one row a request, a step, a chunk, a run."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from . import metrics
from .run import Run


def requests(run: Run) -> pd.DataFrame:
    """One row a request, refused ones at the end."""
    rows = [
        {
            "request": r.id,
            "arrival": r.arrival,
            "prompt_tokens": r.prompt_tokens,
            "output_tokens": r.output_tokens,
            "admitted": r.admitted,
            "ttft": r.ttft,
            "tpot": r.tpot,
            "e2e": r.e2e,
            "preemptions": r.preemptions,
            "finish_reason": r.finish_reason,
        }
        for r in metrics.request_times(run)
    ]
    refused = [event for event in run.events if event.kind == "refuse"]
    rows += [{"request": e.request_id, "output_tokens": 0, "finish_reason": "refused"} for e in refused]
    return pd.DataFrame(rows)


def steps(run: Run) -> pd.DataFrame:
    """One row a step, with the rows and tokens of each kind that it computed."""
    rows = []
    for i, step in enumerate(run.log):
        kinds = [chunk.kind for chunk in step.chunks]
        rows.append(
            {
                "step": i,
                "start": step.start,
                "seconds": step.seconds,
                "cpu_share": step.cpu_share,
                "kind": step.kind,
                "tokens": sum(chunk.num_tokens for chunk in step.chunks),
                "prefill_rows": kinds.count("prefill"),
                "decode_rows": kinds.count("decode"),
                "zombie_rows": kinds.count("zombie"),
                "waiting": step.num_waiting,
                "reserved_tokens": step.reserved_tokens,
                "used_tokens": step.used_tokens,
            }
        )
    return pd.DataFrame(rows)


def chunks(run: Run) -> pd.DataFrame:
    """One row a chunk."""
    return pd.DataFrame(
        {
            "step": i,
            "request": chunk.request_id,
            "place": chunk.place,
            "start": chunk.start,
            "num_tokens": chunk.num_tokens,
            "kind": chunk.kind,
            "head": chunk.token_id is not None,
        }
        for i, step in enumerate(run.log)
        for chunk in step.chunks
    )


def summary(run: Run, slo: metrics.SLO | None = None) -> pd.DataFrame:
    """One row for the run, indexed by its policy; concatenate them to compare."""
    row = asdict(metrics.summarise(run, slo))
    return pd.DataFrame([row], index=pd.Index([run.policy], name="policy"))
