"""Terms that links can name, docstrings that Sphinx can read, and links that lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest

BOOK = Path(__file__).resolve().parents[1] / "book"
CHAPTERS = sorted(BOOK.glob("*.ipynb"))
PAGES = sorted(path for path in BOOK.glob("*.md") if path.stem not in ("glossary", "api"))
LINK = re.compile(r"\]\((?!https?:)(?P<file>[^)#\s]*)(?:#(?P<part>[^)\s]*))?\)")


@pytest.fixture(scope="module")
def bookpages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bookpages", BOOK / "_ext" / "bookpages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(chapter: Path) -> str:
    cells = nbformat.read(chapter, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def terms() -> set[str]:
    """The ids that Sphinx gives the glossary's terms."""
    inside = (BOOK / "glossary.md").read_text(encoding="utf-8").partition("```{glossary}")[2]
    names = re.findall(r"^(?![ `]{2}|```)(\S.*)$", inside, flags=re.M)
    return {"term-" + re.sub(r"[^a-zA-Z0-9._]+", "-", name).strip("-") for name in names}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_links_of_a_chapter_work_in_any_notebook_program(chapter: Path) -> None:
    text = text_of(chapter)
    assert not re.search(r"\{(doc|term)\}`", text), "write a link: the role works on the built pages only"
    for found in LINK.finditer(text):
        assert (BOOK / found["file"]).is_file(), found.group()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_a_term_is_in_the_glossary_and_linked_once(chapter: Path) -> None:
    linked = Counter(found["part"] for found in LINK.finditer(text_of(chapter)) if found["part"])
    assert linked
    assert not set(linked) - terms()
    assert set(linked.values()) == {1}, [term for term, times in linked.items() if times > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_leads_to_a_term_once(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = Counter(re.findall(r"[(\"]glossary\.(?:md|html)#(term-[^)\"]+)", text))
    assert linked
    assert not set(linked) - terms()
    assert set(linked.values()) == {1}, [term for term, times in linked.items() if times > 1]


def test_sphinx_is_told_the_terms(bookpages: ModuleType) -> None:
    objects = {("term", "KV cache"): ("book/glossary", "term-KV-cache"), ("label", "x"): ("book/x", "x")}
    domain = SimpleNamespace(objects=objects)
    env = SimpleNamespace(get_domain=lambda name: domain, metadata={"book/glossary": {}, "book/x": {}})
    bookpages.know_terms(None, env)
    assert env.metadata["book/glossary"]["myst_slugs"] == {"term-KV-cache": (0, "term-KV-cache", "KV cache")}
    assert env.metadata["book/x"] == {}


def test_rows_of_a_docstring_become_a_list_of_definitions(bookpages: ModuleType) -> None:
    lines = [
        "What `one` did.",
        "",
        "name      what it is, in `code`",
        "          and more of it",
        "other     another",
        "",
        "Then a sentence.",
    ]
    assert bookpages.mark_up(lines) == [
        "What ``one`` did.",
        "",
        "``name``",
        "    what it is, in ``code``",
        "    and more of it",
        "``other``",
        "    another",
        "",
        "Then a sentence.",
    ]


def test_what_is_marked_up_already_stays(bookpages: ModuleType) -> None:
    lines = ["``x`` and :class:`Run` stay.", "A sentence  with two spaces in it."]
    assert bookpages.mark_up(lines) == lines
