"""The runner, on a tiny book: what runs again and when, what may be shown, what is said of a failure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from helpers.book import write_book, write_notebook

from llmserve.settings import Settings
from tools import execute as executor
from tools import keys
from tools.cli import main
from tools.execute import MARKER, Outcome, execute, fresh_copy, newest_copy
from tools.lock import exclusive
from tools.progress import read_notes
from tools.project import Chapter, Project, ToolError
from tools.stage import NOT_RUN, STALE, stage

SETTINGS = Settings(weights="random", threads=1)
CLAIM = "application/vnd.llmserve.claim+json"
CELL = f"""\
import os
from IPython.display import display
display({{"text/markdown": os.environ["LLMSERVE_SCALE"], "{CLAIM}": {{}}}}, raw=True)"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_book(tmp_path, CELL)


@pytest.fixture
def one(project: Project) -> Chapter:
    return project.chapter(0)


def pretend_run(
    meanwhile: Callable[[], object] = lambda: None, failure: str | None = None
) -> Callable[..., Outcome]:
    """In place of nbmake: leave a copy where the real one does."""

    def run(project: Project, chapter: Chapter, settings: Settings, folder: Path, label: str) -> Outcome:
        meanwhile()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / chapter.path.name).write_bytes(chapter.path.read_bytes())
        return Outcome(chapter, True, 1.0, 50, failure)

    return run


def test_chapters_are_the_notebooks_of_the_toc(project: Project) -> None:
    assert [(c.number, c.name) for c in project.chapters()] == [(0, "00-one"), (1, "01-two")]
    with pytest.raises(ToolError, match=r"no chapter 7.*0 \(00-one\), 1 \(01-two\)"):
        project.chapter(7)


@pytest.mark.parametrize(
    "name",
    [
        "book/00-one.ipynb",
        "llmserve/__init__.py",
        "llmserve/data/post.json",
        "llmserve/new.py",
        "requirements.txt",
        "constraints.txt",
    ],
)
def test_key_changes_with_what_a_chapter_depends_on(project: Project, one: Chapter, name: str) -> None:
    before = keys.chapter_key(project, one, SETTINGS)
    path = project.root / name
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b" ")
    assert keys.chapter_key(project, one, SETTINGS) != before


@pytest.mark.parametrize(
    "change",
    [{"scale": "full"}, {"weights": "pretrained"}, {"device": "cuda"}, {"dtype": "float64"}, {"threads": 2}],
)
def test_key_changes_with_settings(project: Project, one: Chapter, change: dict) -> None:
    other = replace(SETTINGS, **change)
    assert keys.chapter_key(project, one, SETTINGS) != keys.chapter_key(project, one, other)


def test_key_changes_with_the_machine(
    project: Project, one: Chapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys.chapter_key(project, one, SETTINGS)
    monkeypatch.setattr(keys, "_machine", lambda: {"cpu": "another"})
    assert keys.chapter_key(project, one, SETTINGS) != before


def test_key_stays_with_everything_else(project: Project, one: Chapter) -> None:
    before = keys.chapter_key(project, one, SETTINGS)
    (project.root / "book/index.md").write_text("# Changed\n")
    write_notebook(project.root / "book/01-two.ipynb", "3")
    (project.root / "llmserve/__pycache__").mkdir()
    (project.root / "llmserve/__pycache__/x.cpython-311.pyc").write_bytes(b"x")
    os.utime(one.path, (0, 0))
    assert keys.chapter_key(project, one, SETTINGS) == before


def test_runs_once_and_marks_last(project: Project, one: Chapter, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def write_last(path: Path, text: str) -> None:
        notebook = nbformat.read(path.parent / one.path.name, as_version=4)
        seen.append(notebook.cells[1].outputs[0].data)
        path.write_text(text)

    monkeypatch.setattr(executor, "write_last", write_last)
    first = execute(project, one, replace(SETTINGS, scale="full"), "one")
    assert first.ran and first.failure is None
    assert seen == [{"text/markdown": "full", CLAIM: {}}]  # whole, before the marker was there
    told = json.loads((newest_copy(project, one).parent / MARKER).read_text())
    assert told["settings"]["scale"] == "full" and told["peak_mb"] == first.peak_mb
    if os.path.exists("/proc/self/status"):
        assert 10 < first.peak_mb < 1000

    monkeypatch.setattr(executor, "_run", lambda *_: pytest.fail("ran again"))
    assert not execute(project, one, replace(SETTINGS, scale="full"), "one").ran


def test_failure_is_told_and_never_shown(project: Project, one: Chapter) -> None:
    write_notebook(one.path, "1", "", "whole = 1\nwhole / 0", "3")
    outcome = execute(project, one, SETTINGS, "one")
    assert outcome.failure is not None
    assert "book/00-one.ipynb failed in code cell 2 of 3, which begins `whole = 1`" in outcome.failure
    assert "ZeroDivisionError: division by zero" in outcome.failure
    assert list(project.executed.rglob("*.ipynb")) and not list(project.executed.rglob(MARKER))
    assert fresh_copy(project, one, SETTINGS) is None and newest_copy(project, one) is None


def test_files_that_change_during_a_run_void_it(
    project: Project, one: Chapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = project.root / "llmserve/__init__.py"
    monkeypatch.setattr(executor, "_run", pretend_run(lambda: edit.write_text("x = 1\n")))
    assert "changed while it ran" in (execute(project, one, SETTINGS, "one").failure or "")
    assert newest_copy(project, one) is None


def test_only_fresh_copies_are_rendered(
    project: Project, one: Chapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_run", pretend_run())
    for chapter in project.chapters():
        execute(project, chapter, SETTINGS, chapter.name)
    assert stage(project, SETTINGS, draft=False) == []
    with pytest.raises(ToolError, match="00-one, 01-two"):
        stage(project, replace(SETTINGS, scale="full"), draft=False)
    write_notebook(one.path, "changed")
    with pytest.raises(ToolError, match=r"for: 00-one\.\n.*make book.*DRAFT=1"):
        stage(project, SETTINGS, draft=False)
    assert stage(project, SETTINGS, draft=True) == ["00-one"]
    staged = project.build / "source/book"
    assert STALE in (staged / "00-one.ipynb").read_text()
    assert STALE not in (staged / "01-two.ipynb").read_text()


def test_a_draft_says_what_has_not_run(project: Project) -> None:
    assert stage(project, SETTINGS, draft=True) == ["00-one", "01-two"]
    assert NOT_RUN in (project.build / "source/book/00-one.ipynb").read_text()


def test_a_few_old_copies_are_kept(project: Project, one: Chapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_run", pretend_run())
    for threads in range(1, 8):
        execute(project, one, replace(SETTINGS, threads=threads), "one")
    assert len(list(project.executed.iterdir())) == executor.KEPT
    assert fresh_copy(project, one, replace(SETTINGS, threads=7))


def test_a_second_run_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive(project.build, "python -m tools book"):
        assert main(["html"], project.root) == 1
        assert f"`python -m tools book` (process {os.getpid()}) is running" in capsys.readouterr().err
    with exclusive(project.build, "python -m tools test"):
        pass  # free again


def test_html_takes_the_settings_of_the_last_run(project: Project) -> None:
    project.build.mkdir()
    keys.save_last(project, replace(SETTINGS, scale="full", threads=3))
    last = keys.last_or_given(project, {"LLMSERVE_THREADS": "2", "LLMSERVE_DTYPE": ""})
    assert last == replace(SETTINGS, scale="full", threads=2)
    with pytest.raises(ToolError, match="LLMSERVE_SCALE"):
        keys.last_or_given(project, {"LLMSERVE_SCALE": "huge"})


def test_notes_of_the_kernel(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert read_notes(notes) == (0, 0)
    notes.write_text("start\npeak 90\nstart\npeak 120\nstart\n")
    assert read_notes(notes) == (3, 120)
