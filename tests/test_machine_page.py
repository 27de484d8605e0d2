"""The page of the recorded runs: a column each, and whole without one."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.book import write_book

from llmserve.settings import Settings
from tools import machine_page, record
from tools.project import Project
from tools.stage import stage

SETTINGS = Settings(scale="quick", weights="random", threads=3)
RECORDED = {
    "cpu": "Abacus 9000",
    "cores": 2,
    "memory_gib": 23.5,
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "scale": "full",
    "threads": 2,
    "date": "2026-11-29",
    "chapters": {"00-one": 65, "09-gone": 3660},
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = write_book(tmp_path)
    (tmp_path / "book" / "machine.md").write_text(f"# Machine\n\n{machine_page.MARK}\n\nThe rest.\n")
    return made


def write_record(project: Project, *more: dict) -> None:
    folder = record.folder(project)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps([RECORDED, *more]))


def page(project: Project) -> str:
    return machine_page.page(project, SETTINGS, (project.root / "book/machine.md").read_text())


def test_the_recorded_machine_stands_beside_this_one(project: Project) -> None:
    write_record(project)
    text = page(project)
    here = record.stamp(SETTINGS)
    assert f"| processor | Abacus 9000 | {here['cpu']} |" in text
    assert f"| torch | 2.13.0+cpu | {here['torch']} |" in text
    assert "| scale | full | quick |" in text and "| threads | 2 | 3 |" in text
    assert f"| system | – | {here['system']} |" in text  # an older record may lack a line
    assert text.startswith("# Machine\n\n## The machine\n") and text.endswith("\n\nThe rest.\n")
    assert machine_page.MARK not in text and socket.gethostname() not in text


def test_the_times_lead_to_chapters_that_exist(project: Project) -> None:
    write_record(project)
    text = page(project)
    assert "| chapter | recorded on 2026-11-29 |" in text
    assert "| {doc}`00-one` | 1:05 |" in text
    assert "| 09-gone | 61:00 |" in text
    assert "| together | 62:05 |" in text


def test_a_second_run_has_a_column_of_its_own(project: Project) -> None:
    second = {**RECORDED, "cpu": "Zuse Z3", "date": "2027-01-02", "chapters": {"01-two": 70}}
    write_record(project, second)
    text = page(project)
    here = record.stamp(SETTINGS)
    assert "|  | recorded on 2026-11-29 | recorded on 2027-01-02 | these pages |" in text
    assert f"| processor | Abacus 9000 | Zuse Z3 | {here['cpu']} |" in text
    assert "| {doc}`00-one` | 1:05 |  |" in text
    assert "| {doc}`01-two` |  | 1:10 |" in text
    assert "| together | 62:05 | 1:10 |" in text


def test_without_a_record_the_page_says_so(project: Project) -> None:
    text = page(project)
    assert machine_page.NONE in text and "The time it took" not in text
    assert "|  | these pages |" in text and "| scale | quick |" in text


def test_the_page_is_filled_when_the_pages_are_staged(project: Project) -> None:
    write_record(project)
    stage(project, replace(SETTINGS, scale="full"), draft=True)
    assert "Abacus 9000" in (project.build / "source/book/machine.md").read_text()
    assert machine_page.MARK in (project.root / "book/machine.md").read_text()
