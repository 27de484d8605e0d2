"""Where and why a chapter failed, read out of the copy that nbmake left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

TRACEBACK_LINES = 15
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def code_cells(notebook: Path) -> list[Any]:
    """The cells that nbclient sends to the kernel, in order."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [
        cell
        for cell in cells
        if cell.cell_type == "code"
        and cell.source.strip()
        and "skip-execution" not in cell.metadata.get("tags", [])
    ]


def describe(notebook: Path, shown_as: str, started: int, log: str) -> str:
    """`started`: how many cells had begun; `log`: what pytest printed, for a kernel that died or hung."""
    cells = code_cells(notebook)
    for number, cell in reversed(list(enumerate(cells, start=1))):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return _headline(shown_as, number, cells) + _error(output)
    if "DeadKernelError" in log:
        return _headline(shown_as, started, cells) + "The kernel died: mostly, that is too little memory."
    tail = [line for line in ANSI.sub("", log).splitlines() if line.strip()][-TRACEBACK_LINES:]
    return _headline(shown_as, started, cells) + "\n".join(tail)


def _headline(shown_as: str, number: int, cells: list[Any]) -> str:
    if not 1 <= number <= len(cells):
        return f"{shown_as} failed before its first cell:\n"
    first = cells[number - 1].source.strip().splitlines()[0]
    return f"{shown_as} failed in code cell {number} of {len(cells)}, which begins `{first}`:\n"


def _error(output: Any) -> str:
    frames = ANSI.sub("", "\n".join(output.get("traceback", []))).splitlines()[-TRACEBACK_LINES:]
    return f"{output.ename}: {output.evalue}\n" + "\n".join(f"    {line}" for line in frames)
