"""The page of the machines that the recorded runs were made on, beside the one that builds the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmserve.settings import Settings
from tools import record
from tools.progress import clock
from tools.project import Project

MARK = "<!-- machine -->"
NONE = "No run is recorded yet. `make record` makes one."
MACHINE = {
    "cpu": "processor",
    "cores": "cores",
    "memory_gib": "memory, GiB",
    "system": "system",
    "arch": "architecture",
}
VERSIONS = {"python": "Python", "torch": "torch", "transformers": "transformers", "numpy": "NumPy"}
CHOICES = {
    "scale": "scale",
    "weights": "weights",
    "device": "device",
    "dtype": "dtype",
    "products": "products",
    "threads": "threads",
}


def page(project: Project, settings: Settings, text: str) -> str:
    """The page's own text, with the tables at the mark."""
    there, here = record.runs(project), record.stamp(settings)
    parts = [
        _section("The machine", MACHINE, there, here),
        _section("The versions", VERSIONS, there, here),
        _section("The choices", CHOICES, there, here),
        _times(project, there) if there else NONE,
    ]
    return text.replace(MARK, "\n\n".join(parts))


def _section(
    title: str, names: Mapping[str, str], there: Sequence[Mapping[str, Any]], here: Mapping[str, Any]
) -> str:
    """A row a fact: of each recorded run, and last of the machine that builds the pages."""
    rows = [[label, *(run.get(name, "–") for run in (*there, here))] for name, label in names.items()]
    return f"## {title}\n\n{_table(['', *_headings(there), 'these pages'], rows)}"


def _times(project: Project, there: Sequence[Mapping[str, Any]]) -> str:
    """How long each chapter took, in the column of the run that it belongs to."""
    known = {chapter.name for chapter in project.chapters()}
    took = [run["chapters"] for run in there]
    rows = []
    for name in sorted(set().union(*took)):
        title = f"{{doc}}`{name}`" if name in known else name
        rows.append([title, *(clock(times[name]) if name in times else "" for times in took)])
    rows.append(["together", *(clock(sum(times.values())) for times in took)])
    told = "In minutes and seconds. A chapter's recorded numbers are of the run that has a time for it."
    return f"## The time it took\n\n{told}\n\n{_table(['chapter', *_headings(there)], rows)}"


def _headings(there: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"recorded on {run['date']}" for run in there]


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def place(project: Project, settings: Settings, target: Path) -> None:
    """Fill in the staged copy of the page, if the book has one."""
    if target.is_file():
        target.write_text(page(project, settings, target.read_text(encoding="utf-8")), encoding="utf-8")
