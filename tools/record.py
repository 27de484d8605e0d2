"""`make record`: chapters at full scale, and their numbers written down with the machine's stamp."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from llmserve import plots, posts
from llmserve.hardware import machine
from llmserve.settings import Settings
from tools.collect import found_claims, found_readings
from tools.execute import Outcome, fresh_copy
from tools.progress import clock
from tools.project import Chapter, Project, ToolError, write_last

LIMIT_SECONDS = 150 * 60  # no chapter is started after this
LIBRARIES = ("torch", "transformers", "numpy")
FIGURE = "Six policies on the same arrivals, a panel a metric"
HEADLINE = {
    "throughput": ("tokens/s", 1, ".0f"),
    "goodput_tokens": ("goodput, tokens/s", 1, ".0f"),
    "ttft_p50": ("TTFT p50, s", 1, ".2f"),
    "tpot_p50": ("TPOT p50, ms", 1e3, ".0f"),
    "itl_p99": ("ITL p99, ms", 1e3, ".0f"),
    "slot_efficiency": ("slot efficiency", 1, ".2f"),
}
SHOWN = "six"  # the table of the headline figure and of the README


def folder(project: Project) -> Path:
    return project.root / "llmserve" / "data" / "recorded"


def runs(project: Project) -> list[dict[str, Any]]:
    """The recorded runs, oldest first: a stamp, a date, and the seconds of each chapter that is its own."""
    path = folder(project) / "machine.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def run_of(project: Project) -> dict[str, dict[str, Any]]:
    """Each recorded chapter's run."""
    return {name: run for run in runs(project) for name in run["chapters"]}


def expected(project: Project, chapters: Sequence[Chapter]) -> str:
    """How long the chapters took when they were last recorded, and how many of them never were."""
    known = run_of(project)
    times = [known[name]["chapters"][name] for name in (one.name for one in chapters) if name in known]
    told = [f"about {clock(sum(times))}"] if times else []
    if len(times) < len(chapters):
        told.append(f"{len(chapters) - len(times)} chapter(s) of unknown length")
    return " and ".join(told)


def write(project: Project, settings: Settings, outcomes: Sequence[Outcome]) -> None:
    """Write down what the executed chapters hold; ToolError, and nothing written, if one is missing.

    What is recorded of the book's other chapters stays as it is.
    """
    copies = {one.chapter: fresh_copy(project, one.chapter, settings) for one in outcomes}
    missing = [chapter.name for chapter, copy in copies.items() if copy is None]
    if missing:
        raise ToolError(f"Nothing recorded: {', '.join(missing)} did not run at full scale.")
    claims, readings = [], []
    for chapter, copy in copies.items():
        for one in found_claims(copy):
            claims.append((one["id"], chapter.name, one["kind"], one["verdict"], one["sentence"]))
        for one in found_readings(copy):
            readings += [(chapter.name, *row) for row in _tidy(one)]
    kept = {chapter.name for chapter in project.chapters() if chapter not in copies}
    made = stamp(settings) | {"date": datetime.now(UTC).date().isoformat()}
    seconds = {one.chapter.name: round(one.seconds) for one in outcomes}
    place = folder(project)
    place.mkdir(parents=True, exist_ok=True)
    _csv(place / "claims.csv", ("id", "chapter", "kind", "verdict", "sentence"), claims, kept)
    _csv(place / "readings.csv", ("chapter", "table", "metric", "row", "round", "value"), readings, kept)
    now = _with_run(runs(project), made, seconds, kept)
    write_last(place / "machine.json", json.dumps(now, indent=1) + "\n")
    if any(table == SHOWN for _, table, *_ in readings):
        show(project)


def stamp(settings: Settings) -> dict[str, Any]:
    """The machine, the libraries and the choices; no paths, no host name."""
    return {
        **machine(),
        **{name: version(name) for name in LIBRARIES},
        "scale": settings.scale,
        "weights": settings.weights,
        "device": settings.device,
        "dtype": settings.dtype,
        "products": settings.products,
        "threads": settings.threads,
    }


def _with_run(
    old: list[dict[str, Any]], made: dict[str, Any], seconds: dict[str, int], kept: set[str]
) -> list[dict[str, Any]]:
    """The kept chapters' runs, and last this one, together with what else it made on that date."""
    others = []
    for run in old:
        left = {name: took for name, took in run["chapters"].items() if name in kept}
        if {**run, "chapters": {}} == {**made, "chapters": {}}:
            seconds = left | seconds
        elif left:
            others.append({**run, "chapters": left})
    return [*others, {**made, "chapters": dict(sorted(seconds.items()))}]


def show(project: Project) -> None:
    """Remake the headline figure, and the README's table from the same readings."""
    chapter, table = _readings(project, SHOWN)
    made = run_of(project)[chapter]
    theirs = posts.table("headline").set_index("policy")
    theirs.index = [name.capitalize() for name in theirs.index]
    figure = plots.metric_dots(
        {
            label: {row: [by * value for value in values] for row, values in table[metric].items()}
            for metric, (label, by, _) in HEADLINE.items()
        },
        {label: (by * theirs[metric]).to_dict() for metric, (label, by, _) in HEADLINE.items()},
        "Six policies, the same arrivals",
        dots=f"{made['cpu']}, median and range",
    )
    picture = project.root / "book" / "_static" / "headline.png"
    figure.savefig(picture, dpi=160, metadata={"Software": None})
    readme = project.root / "README.md"
    text = readme.read_text(encoding="utf-8")
    image = f"![{FIGURE}](book/_static/{picture.name})"
    block = f"<!-- recorded -->\n{image}\n\n{_table(table, made)}\n<!-- /recorded -->"
    write_last(readme, re.sub(r"<!-- recorded -->.*<!-- /recorded -->", lambda _: block, text, flags=re.S))


def _table(table: dict[str, dict[str, list[float]]], made: dict[str, Any]) -> str:
    rows = list(next(iter(table.values())))
    lines = ["| policy | " + " | ".join(label for label, _, _ in HEADLINE.values()) + " |"]
    lines.append("|---" * (1 + len(HEADLINE)) + "|")
    for row in rows:
        cells = [f"{by * median(table[metric][row]):{form}}" for metric, (_, by, form) in HEADLINE.items()]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    told = f"Measured on {made['date']}: {made['cpu']}, {made['cores']} cores, {made['weights']} weights, "
    return "\n".join([*lines, "", told + f"{made['dtype']}, torch {made['torch']}, medians."])


def _readings(project: Project, table: str) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """The chapter of a recorded table, and metric -> row -> readings."""
    found: dict[str, dict[str, list[float]]] = {}
    with (folder(project) / "readings.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] == table]
    for line in lines:
        of_metric = found.setdefault(line["metric"], {})
        of_metric.setdefault(line["row"], []).append(float(line["value"]))
    return lines[0]["chapter"], found


def _tidy(kept: dict[str, Any]) -> Iterable[tuple[str, str, str, int, float]]:
    for metric, row, values in kept["values"]:
        for turn, value in enumerate(values, start=1):
            yield kept["table"], metric, row, turn, float(f"{value:.6g}")


def at_full_scale(settings: Settings) -> Settings:
    return replace(settings, scale="full")


def _csv(path: Path, header: Sequence[str], rows: list[Sequence[Any]], kept: set[str]) -> None:
    """Write the rows, with those of the kept chapters that the file has, in the order of the chapters."""
    old: list[Sequence[Any]] = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            old = [tuple(line.values()) for line in csv.DictReader(file) if line["chapter"] in kept]
    chapter = header.index("chapter")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(sorted([*old, *rows], key=lambda row: row[chapter]))
