"""The scoreboard: every claim of the posts and of the chapters, with what became of it, built last."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from llmserve.claims import SIGNS
from llmserve.posts import PostClaim, register
from llmserve.settings import Settings
from tools import record
from tools.collect import found_claims
from tools.execute import MARKER, fresh_copy, newest_copy
from tools.project import Project

MARK = "<!-- scoreboard -->"
CHAPTERS = {  # as the register calls them
    "why batch": "00-why-batch",
    "static": "01-static",
    "dynamic": "02-dynamic",
    "slot cache": "03-slot-cache",
    "continuous": "04-continuous",
    "chunked": "05-chunked",
    "comparison": "06-comparison",
    "memory": "07-memory",
    "paged": "11-paged",
    "who goes first": "12-who-goes-first",
}
LABELS = {"M": "measured", "C": "computed", "S": "simulated", "O": "left open"}
AT_ODDS = {
    "C3": "The first post says that the whole step is within about 10% of the old one from context 64 "
    "up. Its own table has a larger difference.",
    "K8": "The first post says that averages stay fine under continuous batching. In its own table TPOT "
    "rises.",
    "K11": "The second post says that continuous batching does not degrade token streaming. "
    "The first measures that it does.",
    "A11": "The first post measures one throughput at load 0.8 and simulates another at the same load.",
}


@dataclass(frozen=True)
class Reading:
    """What one chapter found of a claim."""

    id: str
    chapter: str
    kind: str
    verdict: str
    sentence: str
    when: str = ""  # the scale and whether the outputs are stale; or the machine, if several are recorded

    @property
    def line(self) -> str:
        sign = SIGNS[self.verdict.removesuffix(" (one round only)")]
        return f"{sign} {self.verdict}. {self.sentence} ({{doc}}`{self.chapter}`{self.when})"


def page(project: Project, settings: Settings, text: str) -> str:
    """The scoreboard's page: its own text, with the claims at the mark."""
    here, there = readings(project, settings), recorded(project)
    return text.replace(
        MARK, "\n\n".join([_counts(here, there), _at_odds(here), _open(here), *_rows(here, there)])
    )


def readings(project: Project, settings: Settings) -> list[Reading]:
    """Every claim in the executed chapters, as this run found it."""
    found = []
    for chapter in project.chapters():
        copy = fresh_copy(project, chapter, settings)
        stale = copy is None
        copy = copy or newest_copy(project, chapter)
        if copy is None:
            continue
        scale = json.loads((copy.parent / MARKER).read_text(encoding="utf-8"))["settings"]["scale"]
        when = f", {scale} scale" + (", stale" if stale else "")
        for one in found_claims(copy):
            fields = {name: one[name] for name in ("id", "kind", "verdict", "sentence")}
            found.append(Reading(chapter=chapter.name, when=when, **fields))
    return found


def recorded(project: Project) -> list[Reading]:
    path = record.folder(project) / "claims.csv"
    if not path.is_file():
        return []
    made = record.run_of(project)
    several = len(record.runs(project)) > 1
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    where = {name: f", {run['cpu']}, {run['cores']} cores" if several else "" for name, run in made.items()}
    return [Reading(**row, when=where[row["chapter"]]) for row in rows]


def _counts(here: list[Reading], there: list[Reading]) -> str:
    """How many readings came out how."""
    lines = ["| | recorded | here |", "|---|---|---|"]
    tallies = [Counter(r.verdict.removesuffix(" (one round only)") for r in side) for side in (there, here)]
    for verdict, sign in SIGNS.items():
        lines.append(f"| {sign} {verdict} | {tallies[0][verdict]} | {tallies[1][verdict]} |")
    return "\n".join(lines)


def _at_odds(here: list[Reading]) -> str:
    lines = ["## Where the posts disagree", "With each other, or with themselves:"]
    for claim, what in AT_ODDS.items():
        lines.append(
            f"- **{claim}.** {what} " + (" ".join(r.line for r in here if r.id == claim) or "Not run.")
        )
    return "\n\n".join([lines[0], lines[1], "\n".join(lines[2:])])


def _open(here: list[Reading]) -> str:
    lines = []
    for claim in register().values():
        if "O" in claim.label:
            chapters = dict.fromkeys(r.chapter for r in here if r.id == claim.id)
            where = ", ".join(f"{{doc}}`{name}`" for name in chapters) or _unanswered(claim)
            lines.append(f"- **{claim.id}**, {claim.claim}: {where}")
    return "## What the posts left open, and where it is answered\n\n" + "\n".join(lines)


def _rows(here: list[Reading], there: list[Reading]) -> list[str]:
    """A section a chapter, a definition list of its claims; last the claims that the chapters added."""
    known = register()
    groups: dict[str, list[str]] = {}
    for claim in known.values():
        groups.setdefault(claim.chapter.split(",")[0].split(" (")[0], []).append(claim.id)
    sections = []
    order = [*CHAPTERS, *groups]  # as in the book, then what has no chapter yet
    for name, ids in sorted(groups.items(), key=lambda group: order.index(group[0])):
        rows = [_row(known[i].claim, known[i], i, here, there) for i in ids]
        sections.append(f"## {name.capitalize()}\n\n" + "\n\n".join(rows))
    added = dict.fromkeys(r.id for r in [*there, *here] if r.id not in known)
    rows = [_row("added by the book", None, i, here, there) for i in added]
    return [*sections, "## Added by the chapters\n\n" + "\n\n".join(rows)] if rows else sections


def _row(claim: str, post: PostClaim | None, id: str, here: list[Reading], there: list[Reading]) -> str:
    lines = [f"{id}: {claim}"]
    if post:
        how = ", ".join(LABELS[label] for label in post.label.split("+") if label in LABELS)
        figure = post.post if post.post not in ("", "–") else "no figure"
        lines.append(f": **The post**{f' ({how})' if how else ''}: {figure}")
    for title, side in (("Recorded", there), ("Here", here)):
        lines += [f": **{title}:** {r.line}" for r in side if r.id == id]
    if post and not any(r.id == id for r in here):
        lines.append(f": **Here:** {_unanswered(post)}")
    return "\n".join(lines)


def _unanswered(claim: PostClaim) -> str:
    names = [name.split(" (")[0].strip() for name in claim.chapter.split(",")]
    built = [CHAPTERS[name] for name in names if name in CHAPTERS]
    return "did not run" if built else "not built yet"


def place(project: Project, settings: Settings, target: Path) -> None:
    """Fill in the staged copy of the page, if the book has one."""
    if target.is_file():
        target.write_text(page(project, settings, target.read_text(encoding="utf-8")), encoding="utf-8")
