"""Where things lie: the chapters, in the order of the table of contents, and the folders built from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class ToolError(Exception):
    """Something the user can put right; the message is all that is printed."""


@dataclass(frozen=True)
class Chapter:
    name: str  # 01-static
    path: Path  # <root>/book/01-static.ipynb

    @property
    def number(self) -> int | None:
        found = re.match(r"\d+", self.name)
        return int(found.group()) if found else None


@dataclass(frozen=True)
class Project:
    root: Path

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def html(self) -> Path:
        return self.build / "html"

    @property
    def executed(self) -> Path:
        return self.build / "executed"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def chapters(self) -> list[Chapter]:
        """The notebooks of _toc.yml; pages in Markdown have nothing to run."""
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        pages = [self._page(entry) for entry in _entries(toc)]
        return [Chapter(page.stem, page) for page in pages if page.suffix == ".ipynb"]

    def _page(self, entry: str) -> Path:
        for suffix in ("", ".ipynb", ".md"):
            path = self.root / f"{entry}{suffix}"
            if path.is_file():
                return path
        raise ToolError(f"_toc.yml names {entry}, but there is no {entry}.ipynb or {entry}.md.")

    def chapter(self, number: int | str) -> Chapter:
        chapters = self.chapters()
        for chapter in chapters:
            if chapter.number == number:
                return chapter
        known = ", ".join(f"{c.number} ({c.name})" for c in chapters)
        raise ToolError(f"There is no chapter {number!r}. There are: {known}.")

    def chosen(self, numbers: str) -> list[Chapter]:
        """The chapters of "11,12", in the order of the book; ToolError if one of them is none."""
        asked = [number.strip() for number in numbers.split(",")]
        chosen = {self.chapter(int(number) if number.isdecimal() else number) for number in asked}
        return [chapter for chapter in self.chapters() if chapter in chosen]


def _entries(node: Any) -> Iterator[str]:
    """Every `root` and `file` of a table of contents, top to bottom."""
    if isinstance(node, list):
        for item in node:
            yield from _entries(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("root", "file"):
                yield value
            else:
                yield from _entries(value)


def write_last(path: Path, text: str) -> None:
    """Write a file so that it is either absent or whole, whenever the process ends."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
