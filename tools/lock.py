"""One run at a time: nothing measures while something else of ours runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tools.project import ToolError


@contextmanager
def exclusive(build: Path, command: str) -> Iterator[None]:
    """Hold the lock of this checkout, or fail at once, saying who holds it."""
    build.mkdir(parents=True, exist_ok=True)
    holder = build / "lock.json"
    lock = FileLock(build / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ToolError(f"{_describe(holder)} is running here: wait for it to end, then try again.") from None
    try:
        holder.write_text(json.dumps({"pid": os.getpid(), "command": command}), encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _describe(holder: Path) -> str:
    try:
        told = json.loads(holder.read_text(encoding="utf-8"))
        return f"Another `{told['command']}` (process {told['pid']})"
    except (OSError, ValueError, KeyError):  # it has only just started, or is just ending
        return "Another run"
