"""What the runner says while a chapter runs: one updating line on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

EVERY = 15.0  # seconds between lines where there is no terminal, as in CI


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def read_notes(path: Path) -> tuple[int, int]:
    """From the kernel's notes: how many cells have started, and its peak memory in MB."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        return 0, 0
    return words.count("start"), max((int(word) for word in words if word.isdecimal()), default=0)


class Progress:
    def __init__(self, label: str, cells: int, stream: TextIO | None = None) -> None:
        self.label, self.cells = label, cells
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.said_at = -EVERY

    def update(self, cell: int, seconds: float) -> None:
        where = f"cell {cell} of {self.cells}" if cell else "starting"
        if self.live:
            self._rewrite(f"{self.label}: {where}, {clock(seconds)}")
        elif seconds - self.said_at >= EVERY:
            self.said_at = seconds
            print(f"{self.label}: {where}, {clock(seconds)}", file=self.stream, flush=True)

    def close(self, text: str) -> None:
        if self.live:
            self._rewrite("")
        print(f"{self.label}: {text}", file=self.stream, flush=True)

    def _rewrite(self, line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)
