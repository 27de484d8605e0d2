"""What an executed chapter depends on: settings, machine and files, hashed into the key of its copy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache

from llmserve.hardware import machine
from llmserve.models.load import resolve_weights
from llmserve.settings import Settings
from tools.project import Chapter, Project, ToolError, write_last

PINS = ("requirements.txt", "constraints.txt")


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings asked for, with weights="auto" resolved: what is local now decides what a run means."""
    try:
        settings = Settings.from_env(environ)
        return replace(settings, weights=resolve_weights(settings.weights))
    except ValueError as error:  # no such choice, or pretrained weights asked for that are not here
        raise ToolError(str(error)) from None


def as_environment(settings: Settings) -> dict[str, str]:
    return {f"LLMSERVE_{name.upper()}": str(value) for name, value in asdict(settings).items()}


def chapter_key(project: Project, chapter: Chapter, settings: Settings) -> str:
    """A hash that changes when anything does that could change the chapter's outputs."""
    root = project.root
    package = (path for path in (root / "llmserve").rglob("*") if path.is_file() and path.suffix != ".pyc")
    digest = hashlib.sha256()
    for path in [*sorted(package), *(root / pin for pin in PINS), chapter.path]:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{project.relative(path)} {content}\n".encode())
    digest.update(json.dumps([asdict(settings), _machine()], sort_keys=True).encode())
    return digest.hexdigest()[:16]


_machine = lru_cache(machine)


def save_last(project: Project, settings: Settings) -> None:
    write_last(project.build / "last.json", json.dumps(as_environment(settings), indent=1))


def last_or_given(project: Project, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the last run, except where the environment says otherwise."""
    try:
        last = json.loads((project.build / "last.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = {}
    given = {name: value for name, value in environ.items() if name.startswith("LLMSERVE_") and value}
    return read_settings({**last, **given})
