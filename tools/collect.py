"""What executed chapters have put out for programs to read: claims, and readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

from llmserve import claims, readings


def found_claims(notebook: Path) -> list[dict[str, Any]]:
    """Every claim of an executed notebook, in order."""
    return _outputs(notebook, claims.MIME)


def found_readings(notebook: Path) -> list[dict[str, Any]]:
    """Every kept table of an executed notebook, in order."""
    return _outputs(notebook, readings.MIME)


def _outputs(notebook: Path, mime: str) -> list[dict[str, Any]]:
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [output["data"][mime] for output in outputs if mime in output.get("data", {})]
