"""What the playground page needs beside its text: Pyodide, the package's own modules, and a still picture.

All of it is put into the staged tree, from where Sphinx copies it; none of it is kept in git.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.project import Project, ToolError

VERSION = "314.0.7"  # of the npm package pyodide: exact, and said nowhere else
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
CDN = f"https://cdn.jsdelivr.net/npm/pyodide@{VERSION}/"
PATIENCE = 300  # seconds for npm
DATA = ("llmserve/data/cost.json",)
# Run once for real, so that what is imported on the way counts too.
LOADED = """
import json, sys
from llmserve import playtext
assert "result" in json.loads(playtext.answer('{"settings": {}}'))
names = [name for name in sys.modules if name.partition(".")[0] == "llmserve"]
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""


def furnish(project: Project, book: Path) -> None:
    """Fill the page's folder below `book`, a staged tree; nothing to do for a book without the page."""
    folder = book / "_static" / "playground"
    if not (book / "playground.md").is_file() or not folder.is_dir():
        return
    base = _place_pyodide(project, folder)
    pack(project.root, folder / "llmserve.zip")
    (folder / "page.json").write_text(json.dumps(page(base), indent=1), encoding="utf-8")
    draw_still(folder / "still.png")


def page(base: str) -> dict[str, Any]:
    """What the page's script reads first: where Pyodide is, and the controls, from the package itself."""
    from llmserve import playground
    from llmserve.plots.style import POLICY_COLORS

    return {
        "version": VERSION,
        "pyodide": base,
        "controls": [
            asdict(control) | {"whole": isinstance(control.step, int)} for control in playground.CONTROLS
        ],
        "policies": list(playground.POLICIES),
        "sides": playground.SIDES,
        "colors": POLICY_COLORS,
    }


def draw_still(path: Path) -> None:
    """The timelines of the default settings, for readers without JavaScript."""
    from llmserve import playground, plots

    runs = playground.play({})
    until = max(run.log[-1].end for run in runs.values())
    named = {run.policy.partition("(")[0]: run for run in runs.values()}
    title = "What each slot computed"
    plots.timelines(named, until, title).savefig(path, dpi=160, metadata={"Software": None})


def modules(root: Path) -> list[Path]:
    """The files of the package that the playground imports, asked of Python itself."""
    result = subprocess.run([sys.executable, "-c", LOADED], cwd=root, capture_output=True, text=True)
    if result.returncode != 0:
        raise ToolError(f"{result.stderr.strip()}\nThe playground's own simulation failed.")
    return sorted(Path(name).relative_to(root) for name in json.loads(result.stdout))


def pack(root: Path, archive: Path) -> None:
    """Those files and the data they read, the same bytes for the same content."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in [*modules(root), *map(Path, DATA)]:
            entry = zipfile.ZipInfo(path.as_posix(), date_time=(2020, 1, 1, 0, 0, 0))
            packed.writestr(entry, (root / path).read_bytes(), zipfile.ZIP_DEFLATED)


def _place_pyodide(project: Project, folder: Path) -> str:
    """Copy Pyodide beside the page, if it is to be had; where the page finds it."""
    kept = project.build / "pyodide" / VERSION
    try:
        fetch(kept)
    except ToolError as error:
        print(f"{error}\nThe playground will load Pyodide from its public CDN instead.", flush=True)
        return CDN
    shutil.copytree(kept, folder / "pyodide")
    return "pyodide/"


def fetch(kept: Path) -> None:
    """Pyodide's core from npm into a folder, unless it is there; ToolError says why it cannot be had."""
    if kept.is_dir():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise ToolError("npm is not installed, so Pyodide cannot be copied into the book.")
    print(f"Fetching Pyodide {VERSION} with npm (once) ...", flush=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="part-") as scratch:
        command = [npm, "pack", f"pyodide@{VERSION}", "--silent"]
        try:
            subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True, timeout=PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "stderr", None) or error
            raise ToolError(f"npm could not fetch Pyodide {VERSION}: {str(why).strip()[:300]}") from None
        made = Path(scratch) / "made"
        made.mkdir()
        _unpack(next(Path(scratch).glob("*.tgz")), made)
        made.rename(kept)


def _unpack(archive: Path, folder: Path) -> None:
    """Only the files that a browser asks for: the package also holds types, and files for Node."""
    with tarfile.open(archive) as packed:
        for name in FILES:
            try:
                content = packed.extractfile(f"package/{name}")
            except KeyError:
                raise ToolError(f"There is no {name} in Pyodide {VERSION} as npm has it.") from None
            (folder / name).write_bytes(content.read())
