"""What executed chapters hold is collected, written down with the machine's stamp, and read again."""

from __future__ import annotations

import csv
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.book import pretend_executed, write_book

from llmserve import claims, readings
from llmserve.settings import Settings
from tools import cli, record
from tools.collect import found_claims, found_readings
from tools.execute import Outcome
from tools.project import Project, ToolError

FULL = Settings(scale="full", weights="random", threads=1)
SIX = ("Static", "Dynamic", "Bucketed", "Continuous", "Mixed", "Chunked")


def claim(id: str, sentence: str = "It is so.", verdict: str = "held") -> dict:
    made = claims.Claim(id, sentence, "timing", verdict, {"n": 1})
    return made._repr_mimebundle_()


def kept(table: str, values: dict) -> dict:
    return readings.Kept(table, values, "*a note*")._repr_mimebundle_()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "README.md").write_text("# Tiny\n\n<!-- recorded -->\nold\n<!-- /recorded -->\n\nThe rest.\n")
    (tmp_path / "book" / "_static").mkdir(parents=True)
    return write_book(tmp_path)


def outcomes(project: Project) -> list[Outcome]:
    return [Outcome(chapter, True, 61.4, 5) for chapter in project.chapters()]


def recorded_book(project: Project) -> None:
    one, two = project.chapters()
    six = {
        metric: {name: [0.1 * turn + i for turn in (1, 2, 3)] for i, name in enumerate(SIX)}
        for metric in record.HEADLINE
    }
    pretend_executed(
        project, one, FULL, [claim("S1"), kept("six", six), claim("S2", verdict="did not hold here")]
    )
    pretend_executed(project, two, FULL, [claim("S1", "Again."), kept("two", {"m": {"0.4": [2.0, 1.0]}})])
    record.write(project, FULL, outcomes(project))


def test_outputs_are_found_in_order_and_nothing_else(project: Project) -> None:
    chapter = project.chapters()[0]
    plain = {"text/plain": "1"}
    outputs = [claim("S2"), plain, kept("t", {"m": {"r": [1.0]}}), claim("S1")]
    copy = pretend_executed(project, chapter, FULL, outputs)
    assert [one["id"] for one in found_claims(copy)] == ["S2", "S1"]
    assert found_readings(copy) == [{"table": "t", "values": [["m", "r", [1.0]]]}]


def test_claims_and_readings_are_written_tidy(project: Project) -> None:
    recorded_book(project)
    with (record.folder(project) / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["chapter"], row["verdict"]) for row in rows] == [
        ("S1", "00-one", "held"), ("S2", "00-one", "did not hold here"), ("S1", "01-two", "held"),
    ]  # fmt: skip
    with (record.folder(project) / "readings.csv").open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file) if row["table"] == "two"]
    assert rows == [("01-two", "two", "m", "0.4", "1", "2.0"), ("01-two", "two", "m", "0.4", "2", "1.0")]


def test_the_stamp_names_the_machine_and_no_place(project: Project) -> None:
    recorded_book(project)
    text = (record.folder(project) / "machine.json").read_text()
    (made,) = json.loads(text)
    assert made["scale"] == "full" and made["weights"] == "random"
    assert {"cpu", "cores", "memory_gib", "torch", "transformers", "numpy", "python", "date"} <= set(made)
    assert made["chapters"] == {"00-one": 61, "01-two": 61}
    for place in (socket.gethostname(), str(project.root), str(Path.home())):
        assert place not in text


def test_nothing_is_written_if_a_chapter_is_missing(project: Project) -> None:
    pretend_executed(project, project.chapters()[0], FULL, [claim("S1")])
    with pytest.raises(ToolError, match="01-two did not run at full scale"):
        record.write(project, FULL, outcomes(project))
    assert not record.folder(project).exists()


def test_a_quick_run_is_no_record(project: Project) -> None:
    for chapter in project.chapters():
        pretend_executed(project, chapter, replace(FULL, scale="quick"), [claim("S1")])
    with pytest.raises(ToolError, match="00-one, 01-two did not run at full scale"):
        record.write(project, FULL, outcomes(project))


def test_the_readme_gets_the_table_and_keeps_the_rest(project: Project) -> None:
    recorded_book(project)
    text = (project.root / "README.md").read_text()
    assert text.startswith("# Tiny\n\n<!-- recorded -->\n![Six policies")
    assert "\n| policy | tokens/s |" in text
    assert text.endswith("<!-- /recorded -->\n\nThe rest.\n") and "old" not in text
    row = next(line for line in text.splitlines() if line.startswith("| Continuous |"))
    assert row.split(" | ")[1:4] == ["3", "3", "3.20"]  # medians, in the units of the headings
    assert "| TPOT p50, ms |" in text and "| 3200 |" in row
    assert (project.root / "book/_static/headline.png").stat().st_size > 10_000
    once = text
    record.show(project)
    assert (project.root / "README.md").read_text() == once


def test_recorded_numbers_come_back_as_medians(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_book(project)
    monkeypatch.setattr(readings.resources, "files", lambda _: project.root / "llmserve")
    assert readings.recorded("two").loc["0.4", "m"] == 1.5
    assert list(readings.recorded("six").index) == list(SIX)
    assert readings.column("two", "m", [0.4, 0.8]) == [1.5, None]
    assert readings.column("two", "no such metric", [0.4]) == [None]
    assert readings.beside("two", {"m": ("ms", 1e3), "other": ("x", 1)}) == {"ms": {"0.4": 1500.0}}
    assert readings.recorded("no such table").empty
    assert readings.recorded_column("two").startswith("recorded (")
    assert readings.recorded_column("no such table") == "recorded"


def test_without_a_record_there_is_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings.resources, "files", lambda _: tmp_path)
    assert readings.recorded("six").empty and readings.recorded_machine("six") == {}
    assert readings.column("six", "m", ["a"]) == [None]
    assert readings.beside("six", {"m": ("ms", 1)}) == {}
    assert readings.recorded_column("six") == "recorded"


def test_keep_shows_the_note_and_carries_plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    readings.keep("t", {"m": {0.4: [1, 2]}}, "*noted*")
    bundle = shown[0]._repr_mimebundle_()
    assert bundle["text/markdown"] == "*noted*"
    assert json.loads(json.dumps(bundle[readings.MIME])) == {
        "table": "t",
        "values": [["m", "0.4", [1.0, 2.0]]],
    }


def test_the_limit_stops_before_the_next_chapter(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(cli.time, "monotonic", lambda: 60.0 * len(ran))  # a chapter takes a minute

    def execute(project: Project, chapter, settings: Settings, label: str) -> Outcome:
        ran.append(chapter.name)
        return Outcome(chapter, True, 1.0, 1)

    monkeypatch.setattr(cli, "execute", execute)
    project.build.mkdir()
    with pytest.raises(ToolError, match=r"before 01-two.*goes on from there"):
        cli.run_chapters(project, project.chapters(), FULL, limit=59)
    assert ran == ["00-one"]
    assert record.at_full_scale(replace(FULL, scale="quick")) == FULL
