"""`make record`: every chapter at full scale, and its numbers written down with the machine's stamp."""

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
from tools.project import Project, ToolError, write_last

EXPECTED_SECONDS = 80 * 60  # on two cores, until a record says better
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


def folder(project: Project) -> Path:
    return project.root / "llmserve" / "data" / "recorded"


def expected(project: Project) -> str:
    """How long a record takes: as the last one did, or a first guess."""
    path = folder(project) / "machine.json"
    seconds = EXPECTED_SECONDS
    if path.is_file():
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    return clock(seconds)


def write(project: Project, settings: Settings, outcomes: Sequence[Outcome]) -> None:
    """Write down what the executed chapters hold; ToolError, and nothing written, if one is missing."""
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
    place = folder(project)
    place.mkdir(parents=True, exist_ok=True)
    _csv(place / "claims.csv", ("id", "chapter", "kind", "verdict", "sentence"), claims)
    _csv(place / "readings.csv", ("chapter", "table", "metric", "row", "round", "value"), readings)
    write_last(place / "machine.json", json.dumps(stamp(settings, outcomes), indent=1) + "\n")
    show(project)


def stamp(settings: Settings, outcomes: Sequence[Outcome]) -> dict[str, Any]:
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
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "chapters": {outcome.chapter.name: round(outcome.seconds) for outcome in outcomes},
    }


def show(project: Project) -> None:
    """Remake the headline figure, and the README's table from the same readings."""
    table = _medians(project, "six")
    if not table:
        return
    made = json.loads((folder(project) / "machine.json").read_text(encoding="utf-8"))
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


def _medians(project: Project, table: str) -> dict[str, dict[str, list[float]]]:
    """metric -> row -> readings of one recorded table."""
    found: dict[str, dict[str, list[float]]] = {}
    with (folder(project) / "readings.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["table"] == table:
                of_metric = found.setdefault(line["metric"], {})
                of_metric.setdefault(line["row"], []).append(float(line["value"]))
    return found


def _tidy(kept: dict[str, Any]) -> Iterable[tuple[str, str, str, int, float]]:
    for metric, row, values in kept["values"]:
        for turn, value in enumerate(values, start=1):
            yield kept["table"], metric, row, turn, float(f"{value:.6g}")


def at_full_scale(settings: Settings) -> Settings:
    return replace(settings, scale="full")


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
