"""OpenVINO GenAI with its own cap: prompts whole and in steps of their own, max_num_seqs kept by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino_genai as genai
from openvino_continuous import generate, open_pipeline, warm_up
from worker import Outcome, Workload, serve


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    """All requests are handed over at once; the pipeline decides which of them run."""
    pipeline = open_pipeline(folder, workload, split_fuse=False)
    at_once = len(workload.prompts)
    generate(pipeline, warm_up(workload), at_once)
    return f"OpenVINO GenAI {genai.__version__}, own cap", lambda: generate(pipeline, workload, at_once)


if __name__ == "__main__":
    serve(prepare)
