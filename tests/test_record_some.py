"""Some chapters are recorded again, on another machine or day; the others keep numbers, time and machine."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.book import pretend_executed
from test_record import FULL, claim, kept, project, recorded_book

from llmserve import readings
from llmserve.settings import Settings
from tools import cli, record
from tools.execute import Outcome
from tools.project import Chapter, Project, ToolError

__all__ = ["project"]  # a fixture
CSVS = ("claims", "readings")
SHIPPED = Path(readings.__file__).parent / "data" / "recorded"


def on(monkeypatch: pytest.MonkeyPatch, cpu: str, day: int = 1) -> None:
    """From here on this is another machine, or another day of January."""
    monkeypatch.setattr(record, "machine", lambda: {"cpu": cpu, "cores": 4})
    monkeypatch.setattr(record, "datetime", SimpleNamespace(now=lambda zone: datetime(2027, 1, day)))


def record_again(project: Project, chapter: Chapter, seconds: float = 9.6) -> None:
    table = kept("two", {"m": {"0.4": [7.0]}}) if chapter.number else kept("other", {"m": {"a": [1.0]}})
    pretend_executed(project, chapter, FULL, [claim("S9", "Once more."), table])
    record.write(project, FULL, [Outcome(chapter, True, seconds, 5)])


def written(project: Project) -> dict[str, bytes]:
    names = ("README.md", "book/_static/headline.png", *(f"llmserve/data/recorded/{n}.csv" for n in CSVS))
    return {name: (project.root / name).read_bytes() for name in names}


def of_chapter(text: bytes, name: str) -> list[bytes]:
    return [line for line in text.splitlines() if name.encode() in line]


def stamps(project: Project) -> list[tuple[str, str, dict[str, int]]]:
    return [(run["cpu"], run["date"], run["chapters"]) for run in record.runs(project)]


def test_only_the_chapters_asked_for_change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "Abacus")
    recorded_book(project)
    (project.root / "book/_static/headline.png").write_bytes(b"as it was drawn on Abacus")
    before = written(project)
    on(monkeypatch, "Zuse", day=2)
    record_again(project, project.chapters()[1])
    after = written(project)
    for name in CSVS:
        old, new = (side[f"llmserve/data/recorded/{name}.csv"] for side in (before, after))
        assert of_chapter(old, "00-one") == of_chapter(new, "00-one") != []
        assert new.splitlines()[0] == old.splitlines()[0]
        assert new.splitlines()[1:] == of_chapter(new, "00-one") + of_chapter(new, "01-two")
    claims, values = (after[f"llmserve/data/recorded/{name}.csv"] for name in CSVS)
    assert of_chapter(claims, "01-two") == [b"S9,01-two,timing,held,Once more."]
    assert of_chapter(values, "01-two") == [b"01-two,two,m,0.4,1,7.0"]
    for name in ("README.md", "book/_static/headline.png"):  # of the other chapter
        assert before[name] == after[name]
    assert stamps(project) == [
        ("Abacus", "2027-01-01", {"00-one": 61}),
        ("Zuse", "2027-01-02", {"01-two": 10}),
    ]


def test_the_labels_follow_the_chapter(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "Abacus")
    recorded_book(project)
    on(monkeypatch, "Zuse")
    record_again(project, project.chapters()[1])
    record.show(project)
    text = (project.root / "README.md").read_text()
    assert "Measured on 2027-01-01: Abacus, 4 cores" in text and "Zuse" not in text
    monkeypatch.setattr(readings.resources, "files", lambda _: project.root / "llmserve")
    assert readings.recorded_column("six") == "recorded (Abacus, 4 cores)"
    assert readings.recorded_column("two") == "recorded (Zuse, 4 cores)"
    assert readings.column("two", "m", [0.4]) == [7.0]


def test_the_order_of_recording_is_not_the_order_of_the_lines(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "Abacus")
    recorded_book(project)
    record_again(project, project.chapters()[0])
    with (record.folder(project) / "claims.csv").open(newline="") as file:
        assert [row["chapter"] for row in csv.DictReader(file)] == ["00-one", "01-two"]


def test_a_run_without_chapters_goes_and_equal_ones_of_a_day_are_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "Abacus")
    recorded_book(project)
    one, two = project.chapters()
    on(monkeypatch, "Zuse")
    record_again(project, two)
    record_again(project, one, seconds=5.0)
    assert stamps(project) == [("Zuse", "2027-01-01", {"00-one": 5, "01-two": 10})]
    record_again(project, two, seconds=11.0)
    assert stamps(project) == [("Zuse", "2027-01-01", {"00-one": 5, "01-two": 11})]
    on(monkeypatch, "Zuse", day=2)  # the same machine on another day is another run
    record_again(project, two, seconds=12.0)
    assert [chapters for _, _, chapters in stamps(project)] == [{"00-one": 5}, {"01-two": 12}]


def test_what_the_book_no_longer_has_is_no_longer_recorded(project: Project) -> None:
    recorded_book(project)
    for name in (*(f"{name}.csv" for name in CSVS), "machine.json"):
        path = record.folder(project) / name
        path.write_text(path.read_text().replace("00-one", "00-gone"))
    record_again(project, project.chapters()[1])
    assert not any(b"00-gone" in path.read_bytes() for path in record.folder(project).iterdir())


def test_it_says_how_long_the_chapters_asked_for_took(project: Project) -> None:
    one, two = project.chapters()
    assert record.expected(project, [one, two]) == "2 chapter(s) of unknown length"
    record_again(project, two, seconds=65.0)
    assert record.expected(project, [two]) == "about 1:05"
    assert record.expected(project, [one, two]) == "about 1:05 and 1 chapter(s) of unknown length"


def test_chapters_are_chosen_by_their_numbers(project: Project) -> None:
    one, two = project.chapters()
    assert project.chosen("1") == project.chosen("01") == [two]
    assert project.chosen("1, 0,1") == [one, two]
    for numbers, wrong in (("0,7", "7"), ("one", "'one'"), ("1,", "''"), ("-1", "'-1'")):
        with pytest.raises(ToolError, match=rf"no chapter {wrong}\. There are: 0 \(00-one\), 1 \(01-two\)"):
            project.chosen(numbers)


def test_the_command_runs_what_it_is_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def execute(project: Project, chapter: Chapter, settings: Settings, label: str) -> Outcome:
        ran.append(f"{chapter.name} {settings.scale}")
        pretend_executed(project, chapter, settings, [claim("S1")])
        return Outcome(chapter, True, 61.4, 5)

    monkeypatch.setattr(cli, "execute", execute)
    assert cli.main(["record", "7"], project.root) == 1
    assert "There is no chapter 7. There are: 0 (00-one), 1 (01-two)." in capsys.readouterr().err
    assert ran == [] and not record.folder(project).exists()
    assert cli.main(["record", "1"], project.root) == 0
    assert ran == ["01-two full"] and list(record.run_of(project)) == ["01-two"]
    assert cli.main(["record"], project.root) == 0
    assert ran[1:] == ["00-one full", "01-two full"] and list(record.run_of(project)) == ["00-one", "01-two"]


def test_what_comes_with_the_package_has_one_machine_a_chapter_and_one_chapter_a_table() -> None:
    runs = json.loads((SHIPPED / "machine.json").read_text(encoding="utf-8"))
    recorded = [name for run in runs for name in run["chapters"]]
    assert len(recorded) == len(set(recorded)) and all(run["chapters"] for run in runs)
    chapters = defaultdict(set)
    for name in CSVS:
        with (SHIPPED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                assert line["chapter"] in recorded
                chapters[line.get("table")].add(line["chapter"])
    del chapters[None]  # claims are of no table
    assert all(len(names) == 1 for names in chapters.values())
    for table in chapters:
        assert readings.recorded_machine(table)["chapters"].keys() >= chapters[table]
