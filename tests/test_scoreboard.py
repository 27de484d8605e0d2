"""The scoreboard shows every claim of the register, what became of it, and what has not run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.book import pretend_executed, write_book
from test_record import FULL, claim, outcomes

from llmserve.posts import register
from tools import record, scoreboard
from tools.execute import Outcome
from tools.project import Project
from tools.stage import stage

QUICK = replace(FULL, scale="quick")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "scoreboard.md").write_text(f"# Scoreboard\n\nWords.\n\n{scoreboard.MARK}\n")
    (tmp_path / "README.md").write_text("")
    return write_book(tmp_path)


def page(project: Project) -> str:
    return scoreboard.page(project, QUICK, (project.root / "book/scoreboard.md").read_text())


def row(text: str, id: str) -> str:
    """The term of a claim and its definitions."""
    return re.search(rf"^{re.escape(id)}: .*(?:\n: .*)*", text, flags=re.M).group()


def test_every_claim_of_the_posts_has_one_row(project: Project) -> None:
    text = page(project)
    for claim_ in register().values():
        assert len(re.findall(rf"^{claim_.id}: ", text, flags=re.M)) == 1
        assert claim_.claim in row(text, claim_.id)
    assert text.startswith("# Scoreboard\n\nWords.\n\n| | recorded | here |")


def test_what_did_not_run_and_what_is_not_built_say_so(project: Project) -> None:
    text = page(project)
    assert ": **Here:** did not run" in row(text, "S1")
    assert ": **Here:** not built yet" in row(text, "U5")
    assert "- **U5**, fp32 only; with fp16 or INT8 the knee moves: not built yet" in text


def test_readings_show_verdict_sentence_chapter_and_scale(project: Project) -> None:
    one, two = project.chapters()
    pretend_executed(project, one, QUICK, [claim("S4", "It fell.", "held (one round only)")])
    pretend_executed(project, two, QUICK, [claim("S4", "It rose.", "did not hold here"), claim("X1", "New.")])
    text = page(project)
    assert row(text, "S4").splitlines()[-2:] == [
        ": **Here:** ✓ held (one round only). It fell. ({doc}`00-one`, quick scale)",
        ": **Here:** ✗ did not hold here. It rose. ({doc}`01-two`, quick scale)",
    ]
    assert "did not run" not in row(text, "S4")
    added = text[text.index("## Added by the chapters") :]
    assert "X1: added by the book" in added and "New." in added
    assert "| ✓ held | 0 | 2 |" in text and "| ✗ did not hold here | 0 | 1 |" in text


def test_an_older_run_is_shown_and_called_stale(project: Project) -> None:
    one = project.chapters()[0]
    pretend_executed(project, one, FULL, [claim("S4", "At full scale.")])
    assert "({doc}`00-one`, full scale, stale)" in row(page(project), "S4")


def test_recorded_readings_stand_beside(project: Project) -> None:
    for chapter in project.chapters():
        pretend_executed(project, chapter, FULL, [claim("S4", f"Of {chapter.name}.")])
    record.write(project, FULL, outcomes(project))
    assert ": **Recorded:** ✓ held. Of 00-one. ({doc}`00-one`)" in row(page(project), "S4")
    assert "| ✓ held | 2 |" in page(project)


def test_recorded_readings_name_their_machines_once_there_are_several(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chapter, cpu in zip(project.chapters(), ("Abacus 9000", "Zuse Z3"), strict=True):
        monkeypatch.setattr(record, "machine", lambda cpu=cpu: {"cpu": cpu, "cores": 4})
        pretend_executed(project, chapter, FULL, [claim("S4")])
        record.write(project, FULL, [Outcome(chapter, True, 61.4, 5)])
    text = row(page(project), "S4")
    assert ": **Recorded:** ✓ held. It is so. ({doc}`00-one`, Abacus 9000, 4 cores)" in text
    assert ": **Recorded:** ✓ held. It is so. ({doc}`01-two`, Zuse Z3, 4 cores)" in text


def test_open_claims_name_the_chapter_that_answers(project: Project) -> None:
    _, two = project.chapters()
    pretend_executed(project, two, QUICK, [claim("A10"), claim("A10")])
    assert "- **A10**, static's TTFT p99 is worse at the lightest load than at .4: {doc}`01-two`\n" in page(
        project
    )


def test_contradictions_are_listed_with_what_was_found(project: Project) -> None:
    pretend_executed(project, project.chapters()[0], QUICK, [claim("K8", "It rose by a tenth.")])
    text = page(project)
    assert re.search(r"- \*\*K8\.\*\* .*It rose by a tenth\.", text)
    assert re.search(r"- \*\*C3\.\*\* .*Not run\.", text)


def test_it_is_built_last_into_the_staged_tree_only(project: Project) -> None:
    source = (project.root / "book/scoreboard.md").read_text()
    stage(project, QUICK, draft=True)
    staged = (project.build / "source/book/scoreboard.md").read_text()
    assert scoreboard.MARK not in staged and "S1: " in staged
    assert (project.root / "book/scoreboard.md").read_text() == source
