"""A progress bar in a live notebook, and silence everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """The progress of what takes a moment: a bar would only flicker."""


@contextmanager
def default_progress(label: str, progress: Report | None = None, unit: str = "request") -> Iterator[Report]:
    """The given callback, or a tqdm bar in a live notebook, or nothing."""
    if progress or not in_live_notebook():
        yield progress or silent
        return
    from tqdm.auto import tqdm

    with tqdm(desc=label, unit=unit, leave=False) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report


def in_live_notebook() -> bool:
    """True in a Jupyter kernel that a person looks at; the book's runner sets LLMSERVE_RUNNER."""
    if os.environ.get("LLMSERVE_RUNNER") or "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
