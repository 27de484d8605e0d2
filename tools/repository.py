"""Which GitHub repository this is, as "owner/name": from GitHub Actions, else from the git remote.

The README's badges and the cell with which a chapter starts on Colab are read on GitHub as they are
stored, so they have an address in them: OWNER/NAME until `python -m tools address` writes another.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Whatever stands before an "@" is dropped: it can be a token.
REMOTE = re.compile(
    r"""(?: (?:https?|ssh|git)://  (?:[^@/]*@)?  (?:www\.|ssh\.)? github\.com (?::\d+)? /
          |                        (?:[^@/]*@)?  github\.com : /?               )
        (?P<slug> [^/]+ / [^/]+? ) (?:\.git)? /?""",
    re.X | re.I,
)
SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
BADGE = re.compile(r"mybinder\.org/v2/gh/([^/]+/[^/]+)/")


def parse_remote(url: str) -> str | None:
    """owner/name of a GitHub address in https or ssh form; None for any other host or form."""
    found = REMOTE.fullmatch(url.strip())
    return _valid(found["slug"]) if found else None


def detect(root: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    on_github = environ.get("GITHUB_SERVER_URL", "https://github.com") == "https://github.com"
    if on_github and (slug := _valid(environ.get("GITHUB_REPOSITORY", ""))):
        return slug
    try:
        command = ["git", "-C", str(root), "remote", "get-url", "origin"]
        return parse_remote(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):  # no git, no repository or no remote
        return None


def written(root: Path) -> str:
    """owner/name as the README's badges have it."""
    return BADGE.search((root / "README.md").read_text(encoding="utf-8"))[1]


def write(root: Path, slug: str) -> list[Path]:
    """Put owner/name into the README and the chapters; those that had another come back."""
    old = re.compile(rf"(?<=/){re.escape(written(root))}(?![\w.-])")
    changed = []
    for path in (root / "README.md", *sorted((root / "book").glob("*.ipynb"))):
        text = path.read_text(encoding="utf-8")
        made = old.sub(slug, text)
        if made != text:
            path.write_text(made, encoding="utf-8")
            changed.append(path)
    return changed


def _valid(slug: str) -> str | None:
    name = slug.partition("/")[2]
    return slug if SLUG.fullmatch(slug) and name not in (".", "..") else None
