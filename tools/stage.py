"""The source tree that the book is rendered from: the pages, with executed copies in the chapters' places."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import yaml

from llmserve.settings import Settings
from tools import machine_page, repository, scoreboard
from tools.execute import fresh_copy, newest_copy
from tools.project import Project, ToolError

BINDER = "https://mybinder.org"
COLAB = "https://colab.research.google.com"
OWN_MIME = "application/vnd.llmserve"  # how the types of what only programs read begin
ADDRESS = "https://github.com/OWNER/NAME"  # where the book is fetched from: on a page, and in the chapters
FIGURE_MARK = "<!-- signature figure -->"
FIGURE = """:::{figure} _static/headline.png
:alt: Six panels, a row for each policy, on the recorded machine, with the post's values as diamonds.

The recorded run: six policies, the same arrivals, a panel a metric.
:::"""
STALE = "These outputs were made by an earlier version of the code or text, or under other settings."
NOT_RUN = "This chapter has not been run yet: it is shown without outputs."


def stage(project: Project, settings: Settings, draft: bool) -> list[str]:
    """Fill _build/source; the names of the chapters shown under a banner come back (none unless draft)."""
    chapters = project.chapters()
    fresh = {chapter: fresh_copy(project, chapter, settings) for chapter in chapters}
    missing = [chapter for chapter, copy in fresh.items() if copy is None]
    if missing and not draft:
        names = ", ".join(chapter.name for chapter in missing)
        raise ToolError(
            f"No up-to-date outputs (scale {settings.scale}, weights {settings.weights}) for: {names}.\n"
            "Run them with `make book`, or render what there is with `make html DRAFT=1`."
        )
    source = project.build / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        project.root / "book", source / "book", ignore=shutil.ignore_patterns("*.ipynb", ".*", "__pycache__")
    )
    shutil.copyfile(project.root / "_toc.yml", source / "_toc.yml")
    config = yaml.safe_load((project.root / "_config.yml").read_text(encoding="utf-8"))
    slug = repository.detect(project.root)
    first = project.relative(chapters[0].path) if chapters else ""
    text = yaml.safe_dump(with_repository(config, slug, first), allow_unicode=True, sort_keys=False)
    (source / "_config.yml").write_text(text, encoding="utf-8")
    for chapter, copy in fresh.items():
        target = source / project.relative(chapter.path)
        if copy:
            _place(copy, target)
        elif older := newest_copy(project, chapter):
            _place(older, target, STALE)
        else:
            _place(chapter.path, target, NOT_RUN)
    scoreboard.place(project, settings, source / "book" / "scoreboard.md")
    machine_page.place(project, settings, source / "book" / "machine.md")
    _place_figure(source / "book")
    if slug:
        for page in (source / "book").glob("*"):
            _place_address(page, slug)
    return [chapter.name for chapter in missing]


def _place_figure(book: Path) -> None:
    """The recorded run's headline figure on the front page, if there is one."""
    page = book / "index.md"
    figure = FIGURE if (book / "_static" / "headline.png").is_file() else ""
    page.write_text(page.read_text(encoding="utf-8").replace(FIGURE_MARK, figure), encoding="utf-8")


def _place_address(page: Path, slug: str) -> None:
    """This repository's own address in the commands that fetch it."""
    if page.suffix in (".ipynb", ".md"):
        text = page.read_text(encoding="utf-8").replace(ADDRESS, f"https://github.com/{slug}")
        page.write_text(text, encoding="utf-8")


def with_repository(config: dict[str, Any], slug: str | None, first_page: str) -> dict[str, Any]:
    """The settings with this repository's buttons and badges; without a repository the file has none."""
    if not slug:
        return config
    made = deepcopy(config)
    made["repository"]["url"] = f"https://github.com/{slug}"
    made["html"] |= {"use_repository_button": True, "use_issues_button": True}
    made["launch_buttons"] |= {"binderhub_url": BINDER, "colab_url": COLAB}
    branch = made["repository"]["branch"]
    on_binder = f"{BINDER}/v2/gh/{slug}/{branch}?urlpath=lab/tree/{first_page}"
    on_colab = f"{COLAB}/github/{slug}/blob/{branch}/{first_page}"
    made["parse"]["myst_substitutions"] |= {
        "binder_badge": f"[![Open on Binder]({BINDER}/badge_logo.svg)]({on_binder})",
        "colab_badge": f"[![Open on Colab]({COLAB}/assets/colab-badge.svg)]({on_colab})",
    }
    return made


def _place(notebook: Path, target: Path, banner: str | None = None) -> None:
    """Copy a chapter without those outputs that only programs read: myst-nb warns of types unknown to it."""
    made = nbformat.read(notebook, as_version=4)
    for output in (output for cell in made.cells for output in cell.get("outputs", [])):
        for mime in [mime for mime in output.get("data", {}) if mime.startswith(OWN_MIME)]:
            del output["data"][mime]
    if banner:
        cell = nbformat.v4.new_markdown_cell(f":::{{warning}}\n{banner}\n:::")
        made.cells.insert(1, cell)  # under the cell with the page's title
    nbformat.write(made, target)
