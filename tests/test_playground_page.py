"""What the tools put beside the playground page: the package's modules, Pyodide if it is to be had."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import playground
from tools.project import Project, ToolError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book" / "_static" / "playground").mkdir(parents=True)
    (tmp_path / "book" / "playground.md").write_text("# Playground\n")
    return tmp_path / "book"


def no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground.shutil, "which", lambda name: None)


def npm_that(monkeypatch: pytest.MonkeyPatch, does: Any) -> None:
    monkeypatch.setattr(playground.shutil, "which", lambda name: "npm")
    monkeypatch.setattr(playground, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": does}))


def tarball(folder: Path, names: tuple[str, ...]) -> None:
    with tarfile.open(folder / "pyodide.tgz", "w:gz") as packed:
        for name in names:
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(name)
            packed.addfile(entry, io.BytesIO(name.encode()))


def test_the_archive_simulates_on_its_own(tmp_path: Path) -> None:
    playground.pack(ROOT, tmp_path / "llmserve.zip")
    playground.pack(ROOT, tmp_path / "again.zip")
    assert (tmp_path / "llmserve.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "llmserve.zip") as packed:
        packed.extractall(tmp_path / "out")
        assert not [name for name in packed.namelist() if "torch" in name or "plots" in name]
    program = "from llmserve.playtext import answer; print(answer('{\"settings\": {}}')[:10])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path / "out", capture_output=True, text=True
    )
    assert done.stdout.strip() == '{"result":', done.stderr


def test_without_npm_the_page_takes_the_public_cdn_and_the_build_goes_on(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_npm(monkeypatch)
    monkeypatch.setattr(playground, "pack", lambda root, archive: archive.write_bytes(b""))
    playground.furnish(Project(tmp_path), book)
    told = json.loads((book / "_static/playground/page.json").read_text())
    assert told["pyodide"] == playground.CDN and playground.VERSION in told["pyodide"]
    assert {control["name"] for control in told["controls"]} >= {"load", "slots", "budget"}
    assert "npm is not installed" in capsys.readouterr().out
    assert (book / "_static/playground/still.png").stat().st_size > 10_000


def test_pyodide_is_fetched_once_and_only_what_a_browser_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(command: list[str], cwd: str, **_: Any) -> None:
        calls.append(command)
        tarball(Path(cwd), (*playground.FILES, "pyodide.d.ts"))

    npm_that(monkeypatch, run)
    for _ in range(2):
        playground.fetch(tmp_path / "kept" / "1")
    assert len(calls) == 1 and f"pyodide@{playground.VERSION}" in calls[0]
    assert {path.name for path in (tmp_path / "kept" / "1").iterdir()} == set(playground.FILES)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["1"]


def test_a_failed_fetch_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="no such host")

    npm_that(monkeypatch, run)
    with pytest.raises(ToolError, match="no such host"):
        playground.fetch(tmp_path / "1")
    npm_that(monkeypatch, lambda command, cwd, **_: tarball(Path(cwd), ("pyodide.mjs",)))
    with pytest.raises(ToolError, match="There is no pyodide"):
        playground.fetch(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_book_without_the_page_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    playground.furnish(Project(tmp_path), tmp_path / "book")
    assert list((tmp_path / "book").iterdir()) == []
