"""The built book on a local server, and Chromium to look at it. Skipped, with the reason, without either.

Where BROWSER_TESTS=required is set, as the workflow does, what is missing is a failure.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tools.serve import Handler

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
SHOTS = ROOT / "_build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing(reason: str) -> None:
    if os.environ.get("BROWSER_TESTS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


class Quiet(Handler):
    def log_message(self, *_: object) -> None:
        """Not a line for each request."""


@dataclass
class Complaints:
    """What a page said on the console as an error, threw, or asked for in vain."""

    found: list[str] = field(default_factory=list)

    def listen(self, page: Any) -> None:
        page.on("console", lambda one: one.type == "error" and self.found.append(f"console: {one.text}"))
        page.on("pageerror", lambda error: self.found.append(f"thrown: {error}"))
        page.on("requestfailed", self.hear_of_failure)
        page.on("response", lambda one: one.status >= 400 and self.found.append(f"{one.status}: {one.url}"))

    def hear_of_failure(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # broken off by the page itself, which was left meanwhile
            self.found.append(f"failed: {request.url}: {request.failure}")


@pytest.fixture(scope="session")
def site() -> Path:
    if not (SITE / "index.html").is_file():
        missing("the book is not built: run make html")
    return SITE


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the built book is served: on this machine, on any free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


# Closed with each module: while it is open, an event loop runs in this thread, which other tests may need.
@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        missing(f"no browser: install one of {', '.join(BROWSERS)}")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()
