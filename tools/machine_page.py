"""The page of the machine that the recorded run was made on, beside the one that builds the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    here = record.stamp(settings, ())
    path = record.folder(project) / "machine.json"
    there = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    parts = [
        _section("The machine", MACHINE, there, here),
        _section("The versions", VERSIONS, there, here),
        _section("The choices", CHOICES, there, here),
        _times(project, there) if there else NONE,
    ]
    return text.replace(MARK, "\n\n".join(parts))


def _section(title: str, names: Mapping[str, str], there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """A row a fact: of the recorded run, and of the machine that builds the pages."""
    lines = [f"## {title}", "", "| | recorded run | these pages |", "|---|---|---|"]
    lines += [
        f"| {label} | {there.get(name, '–')} | {here.get(name, '–')} |" for name, label in names.items()
    ]
    return "\n".join(lines)


def _times(project: Project, there: Mapping[str, Any]) -> str:
    """How long each chapter of the recorded run took."""
    known = {chapter.name for chapter in project.chapters()}
    lines = ["## The time it took", "", f"Recorded on {there['date']}.", ""]
    lines += ["| chapter | minutes and seconds |", "|---|---|"]
    for name, seconds in there["chapters"].items():
        title = f"{{doc}}`{name}`" if name in known else name
        lines.append(f"| {title} | {clock(seconds)} |")
    return "\n".join([*lines, f"| together | {clock(there['seconds'])} |"])


def place(project: Project, settings: Settings, target: Path) -> None:
    """Fill in the staged copy of the page, if the book has one."""
    if target.is_file():
        target.write_text(page(project, settings, target.read_text(encoding="utf-8")), encoding="utf-8")
