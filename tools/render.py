"""The HTML: built from the staged tree with warnings as errors, then put in place of the former book."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from llmserve.settings import Settings
from tools import playground
from tools.progress import clock
from tools.project import Project, ToolError
from tools.stage import stage


def render(project: Project, settings: Settings, draft: bool = False) -> Path:
    """Render the book and return its first page. A failed build leaves the former book in place."""
    started = time.monotonic()
    drafts = stage(project, settings, draft)
    if drafts:
        print(f"DRAFT, under a banner: {', '.join(drafts)}", flush=True)
    playground.furnish(project, project.build / "source" / "book")
    print("Rendering the pages ...", flush=True)
    # A reference to a figure of a chapter that has not run leads nowhere, so a draft may have warnings.
    _build(project, [] if drafts else ["-W", "--keep-going"])
    _publish(project.build / "htmlbuild" / "_build" / "html", project.html)
    page = project.html / "index.html"
    print(f"Rendered in {clock(time.monotonic() - started)}. Open {page}", flush=True)
    return page


def _build(project: Project, strictness: list[str]) -> None:
    output = project.build / "htmlbuild"
    # From scratch: an incremental build does not repeat, and so forgives, the last one's warnings.
    shutil.rmtree(output, ignore_errors=True)
    program = "from jupyter_book.cli.main import main; main()"
    arguments = ["build", str(project.build / "source"), "--path-output", str(output)]
    command = [sys.executable, "-c", program, *arguments, "-q", "-n", *strictness]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if result.returncode != 0:
        raise ToolError(f"{result.stderr.strip() or result.stdout.strip()}\nThe book could not be rendered.")
    if result.stderr.strip():
        print(result.stderr.strip(), file=sys.stderr)


def _publish(made: Path, place: Path) -> None:
    former = place.with_name("html.former")
    shutil.rmtree(former, ignore_errors=True)
    if place.exists():
        place.rename(former)
    made.rename(place)
    shutil.rmtree(former, ignore_errors=True)
