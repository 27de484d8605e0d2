"""The one executor: nbmake runs a copy of a chapter, kept under a key of all that it depends on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from llmserve.settings import Settings
from tools import failure
from tools.keys import as_environment, chapter_key
from tools.progress import Progress, clock, read_notes
from tools.project import Chapter, Project, ToolError, write_last

MARKER = "ok.json"
KEPT = 4  # executed copies of one chapter: a few, so that going between two scales runs nothing again
CELL_TIMEOUT = 1800


@dataclass(frozen=True)
class Outcome:
    chapter: Chapter
    ran: bool
    seconds: float
    peak_mb: int
    failure: str | None = None


def copy_folder(project: Project, chapter: Chapter, key: str) -> Path:
    return project.executed / f"{chapter.name}-{key}"


def fresh_copy(project: Project, chapter: Chapter, settings: Settings) -> Path | None:
    """The executed notebook made by exactly the present files and settings, if there is one."""
    folder = copy_folder(project, chapter, chapter_key(project, chapter, settings))
    return folder / chapter.path.name if (folder / MARKER).is_file() else None


def newest_copy(project: Project, chapter: Chapter) -> Path | None:
    """The executed notebook that succeeded last, whatever made it."""
    done = [folder for folder in _copies(project, chapter) if (folder / MARKER).is_file()]
    return done[0] / chapter.path.name if done else None


def execute(project: Project, chapter: Chapter, settings: Settings, label: str) -> Outcome:
    """Run a chapter unless its outputs are there. A failed copy is kept to be read, but without marker."""
    key = chapter_key(project, chapter, settings)
    folder = copy_folder(project, chapter, key)
    if (folder / MARKER).is_file():
        print(f"{label}: up to date", flush=True)
        told = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return Outcome(chapter, False, told["seconds"], told["peak_mb"])
    outcome = _run(project, chapter, settings, folder, label)
    if outcome.failure is None and chapter_key(project, chapter, settings) != key:
        changed = f"{project.relative(chapter.path)} or the package changed while it ran: run it again."
        outcome = Outcome(chapter, True, outcome.seconds, outcome.peak_mb, changed)
    if outcome.failure is None:
        told = {
            "seconds": round(outcome.seconds, 1),
            "peak_mb": outcome.peak_mb,
            "settings": asdict(settings),
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        write_last(folder / MARKER, json.dumps(told, indent=1))
    for old in _copies(project, chapter)[KEPT:]:
        shutil.rmtree(old)
    return outcome


def _run(project: Project, chapter: Chapter, settings: Settings, folder: Path, label: str) -> Outcome:
    progress = Progress(label, len(failure.code_cells(chapter.path)))
    started = time.monotonic()
    # Not run inside _build: nbmake collects nothing below a folder of that name.
    with tempfile.TemporaryDirectory(prefix="llmserve-", ignore_cleanup_errors=True) as scratch:
        copy = Path(scratch) / "run" / chapter.path.name
        notes, log = Path(scratch) / "notes", Path(scratch) / "log"
        copy.parent.mkdir()
        shutil.copyfile(chapter.path, copy)
        environment = _environment(project, settings, Path(scratch) / "ipython", notes)
        with _nbmake(copy, environment, log) as process:
            while process.poll() is None:
                progress.update(read_notes(notes)[0], time.monotonic() - started)
                time.sleep(0.5)
        seconds = time.monotonic() - started
        cell, peak_mb = read_notes(notes)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kept = Path(shutil.copyfile(copy, folder / chapter.path.name))
        why = None
        if process.returncode != 0:
            shown_as = project.relative(chapter.path)
            why = failure.describe(kept, shown_as, cell, log.read_text(encoding="utf-8", errors="replace"))
            why += f"\nWhat it had put out until then: {project.relative(kept)}"
    memory = f", peak {peak_mb} MB" if peak_mb else ""
    progress.close(f"{'FAILED' if why else 'done'} in {clock(seconds)}{memory}")
    return Outcome(chapter, True, seconds, peak_mb, why)


@contextmanager
def _nbmake(copy: Path, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    # A rootdir of its own, so that pytest neither reads this project's options nor writes into it.
    options = ["--nbmake", "--overwrite", f"--nbmake-timeout={CELL_TIMEOUT}", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={copy.parent}", str(copy)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=copy.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us alone; we end the child below
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # nbclient then ends its kernel
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(project: Project, settings: Settings, ipython: Path, notes: Path) -> dict[str, str]:
    """A kernel that imports this checkout's package, under these settings, without IPython's user files."""
    profile = ipython / "profile_default"
    profile.mkdir(parents=True)
    config = 'get_config().InteractiveShellApp.extensions = ["tools.kernel_progress"]\n'
    (profile / "ipython_kernel_config.py").write_text(config, encoding="utf-8")
    here = Path(__file__).resolve().parents[1]
    paths = dict.fromkeys([str(project.root), str(here), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    # MPLBACKEND would switch off inline figures; PYTEST_ADDOPTS is meant for the unit tests.
    left_out = {"MPLBACKEND", "PYTEST_ADDOPTS"}
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        **as_environment(settings),
        "LLMSERVE_RUNNER": "1",
        "LLMSERVE_PROGRESS_FILE": str(notes),
        "IPYTHONDIR": str(ipython),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _copies(project: Project, chapter: Chapter) -> list[Path]:
    """Executed copies of a chapter, newest first."""
    pattern = f"{chapter.name}-{'[0-9a-f]' * 16}"
    return sorted(project.executed.glob(pattern), key=lambda folder: folder.stat().st_mtime, reverse=True)


def require(outcomes: list[Outcome]) -> None:
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    if failures:
        raise ToolError("\n\n".join(failures))
