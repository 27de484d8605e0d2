"""IPython extension, loaded into a chapter's kernel: notes each cell's start and the memory used so far."""

from __future__ import annotations

import os
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    path = os.environ.get("LLMSERVE_PROGRESS_FILE")
    if not path:
        return

    def note(word: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(word + "\n")

    shell.events.register("pre_run_cell", lambda info: note("start"))
    shell.events.register("post_run_cell", lambda result: note(f"peak {peak_mb():.0f}"))


def peak_mb() -> float:
    """The most memory this process has had resident; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts it in bytes
