"""A tiny book of two chapters, and executed copies of them without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat

from llmserve.settings import Settings
from tools.execute import MARKER, copy_folder
from tools.keys import chapter_key
from tools.project import Chapter, Project


def write_notebook(path: Path, *sources: str) -> None:
    cells = [nbformat.v4.new_markdown_cell("# Title"), *map(nbformat.v4.new_code_cell, sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def write_book(root: Path, first_cell: str = "1") -> Project:
    files = {
        "_toc.yml": "format: jb-book\nroot: book/index\nchapters: [file: book/00-one, file: book/01-two]\n",
        "_config.yml": "title: Tiny\nrepository: {url: ''}\n",
        "requirements.txt": "a==1\n",
        "constraints.txt": "b==1\n",
        "book/index.md": "# Tiny\n",
        "llmserve/__init__.py": "",
        "llmserve/data/post.json": "{}",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_notebook(root / "book/00-one.ipynb", first_cell)
    write_notebook(root / "book/01-two.ipynb", "2")
    return Project(root)


def pretend_executed(
    project: Project, chapter: Chapter, settings: Settings, outputs: Sequence[dict[str, Any]] = ()
) -> Path:
    """An executed copy whose cells put out these MIME bundles; the notebook's path."""
    folder = copy_folder(project, chapter, chapter_key(project, chapter, settings))
    folder.mkdir(parents=True, exist_ok=True)
    made = nbformat.read(chapter.path, as_version=4)
    made.cells[1].outputs = [nbformat.v4.new_output("display_data", data=data) for data in outputs]
    nbformat.write(made, folder / chapter.path.name)
    told = {"seconds": 61.4, "peak_mb": 5, "settings": asdict(settings)}
    (folder / MARKER).write_text(json.dumps(told))
    return folder / chapter.path.name
