"""Every page of the built book: opens without a complaint, its links lead somewhere, it fits a phone."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from .conftest import SHOTS, SITE, Complaints

PAGES = sorted(
    path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if "_static" not in path.parts
)
WIDTHS = {1280: 900, 390: 844}
MADE_BY_THE_THEME = {"#"}  # a link that its script gives a meaning


class Links(HTMLParser):
    """The addresses and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.addresses += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {site / name: Links(site / name) for name in PAGES}


def wrong(path: Path, address: str, pages: dict[Path, Links]) -> bool:
    """Whether a link from a page to within the book leads nowhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or address in MADE_BY_THE_THEME:
        return False
    target, anchor = urldefrag(address)
    file = (path.parent / unquote(urlsplit(target).path)).resolve() if target else path
    if not file.is_file():
        return True
    is_setting = path.name == "playground.html" and "=" in anchor  # its address holds the settings
    return bool(anchor) and not is_setting and file in pages and unquote(anchor) not in pages[file].anchors


def test_every_page_names_its_icon_so_that_no_browser_asks_for_another(site: Path) -> None:
    without = [name for name in PAGES if 'rel="icon"' not in (site / name).read_text(encoding="utf-8")]
    assert without == []


def test_links_and_anchors_within_the_book_resolve(pages: dict[Path, Links]) -> None:
    found = {
        path.name: [a for a in links.addresses if wrong(path, a, pages)] for path, links in pages.items()
    }
    assert {name: addresses for name, addresses in found.items() if addresses} == {}


@pytest.mark.parametrize("name", PAGES or ["none"])
def test_a_page_opens_without_a_complaint_and_fits_a_phone(name: str, address: str, browser: Any) -> None:
    complaints, too_wide = Complaints(), 0
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width, height in WIDTHS.items():
        page = browser.new_page(viewport={"width": width, "height": height})
        complaints.listen(page)
        page.goto(f"{address}/{name}", wait_until="networkidle")
        if name == "book/playground.html":
            page.wait_for_function("document.querySelector('#pg-told strong')", timeout=60_000)
        shot = SHOTS / f"{name.removesuffix('.html').replace('/', '-')}-{width}.png"
        page.screenshot(path=shot, full_page=True)
        too_wide = page.evaluate("document.documentElement.scrollWidth") - width
        page.close()
    assert complaints.found == []
    assert too_wide <= 0, f"{too_wide} pixels wider than a phone"
