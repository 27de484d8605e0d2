"""What the book's pages need of Sphinx: links to terms, and docstrings as pages.

`[slot](glossary.md#term-slot)` works in JupyterLab and on GitHub, where a role such as
`{term}` does not. After the `#` of a page Sphinx knows headings only, so it is told the
terms.

The package's docstrings are plain text: names in single backticks, and lists of a name,
some spaces and what it means. Both are marked up as what they are.
"""

from __future__ import annotations

import re
from typing import Any

ROW = re.compile(r"(?P<indent> *)(?P<name>\w+) {2,}(?P<text>\S.*)")
NAME = re.compile(r"(?<![`:\w])`([^`]+)`(?![`\w])")


def know_terms(app: Any, env: Any) -> list[str]:
    """Let links name a term after the `#`, as they can name a heading."""
    for (kind, name), (page, target) in env.get_domain("std").objects.items():
        if kind == "term":
            slugs = env.metadata[page].setdefault("myst_slugs", {})
            slugs[target] = (0, target, name)
    return []


def mark_up(lines: list[str]) -> list[str]:
    """In reStructuredText: names as literals, rows of names as a definition list."""
    made: list[str] = []
    column = None  # where the text of the last row began, while its list goes on
    for line in lines:
        row = ROW.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if row and (column is not None or not made or not made[-1]):
            column = row.start("text")
            text = _literal(row["text"])
            made += [f"{row['indent']}``{row['name']}``", f"{row['indent']}    {text}"]
        elif column is not None and line.strip() and indent >= 4:
            made.append(f"    {_literal(line.strip())}")
        else:
            column = None
            made.append(_literal(line))
    return made


def _literal(text: str) -> str:
    return NAME.sub(r"``\1``", text)


def process(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = mark_up(lines)


def skip(
    app: Any, what: str, name: str, thing: Any, skipped: bool, options: Any
) -> bool | None:
    """Leave out the fields of a named tuple: their docstring is Python's own."""
    if str(getattr(thing, "__doc__", "")).startswith("Alias for field number"):
        return True
    return None


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("env-updated", know_terms)
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
