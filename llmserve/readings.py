"""A chapter's readings, kept in its cell's output; and those of the recorded run, to stand beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pandas as pd

MIME = "application/vnd.llmserve.readings+json"
Readings = Mapping[str, Mapping[Any, Sequence[float]]]  # metric -> row -> a reading a round


@dataclass(frozen=True)
class Kept:
    """A table of readings under its note: the note is shown, the readings travel with it."""

    table: str
    values: dict[str, dict[str, list[float]]]
    note: str

    def rows(self) -> list[list[Any]]:
        """[metric, row, readings] each: a list, since notebooks are written with their keys sorted."""
        return [[m, row, values] for m, rows in self.values.items() for row, values in rows.items()]

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return {
            "text/markdown": self.note,
            "text/plain": self.note,
            MIME: {"table": self.table, "values": self.rows()},
        }


def keep(table: str, values: Readings, note: str) -> None:
    """Show the note, and keep the readings in the output, where `make record` finds them."""
    from IPython.display import display

    plain = {
        metric: {str(row): [float(value) for value in readings] for row, readings in rows.items()}
        for metric, rows in values.items()
    }
    display(Kept(table, plain, note))


def recorded(table: str) -> pd.DataFrame:
    """Medians of the recorded run, a row each, a column a metric; empty if there is none of this table."""
    path = resources.files("llmserve").joinpath("data", "recorded", "readings.csv")
    if not path.is_file():
        return pd.DataFrame()
    with path.open(encoding="utf-8") as file:
        rows = pd.read_csv(file, dtype={"row": str}).query("table == @table")
    medians = rows.groupby(["row", "metric"], sort=False).value.median().unstack()
    return medians.reindex(rows.row.unique())


def beside(table: str, metrics: Mapping[str, tuple[str, float]]) -> dict[str, dict[str, float]]:
    """The recorded medians by label, in its unit: metrics as name -> (label, factor); {} for none."""
    found = recorded(table)
    return {
        label: (by * found[metric].dropna()).to_dict()
        for metric, (label, by) in metrics.items()
        if metric in found
    }


def column(table: str, metric: str, rows: Iterable[Any]) -> list[float | None]:
    """The recorded medians of these rows, None where there is none."""
    found = recorded(table)
    values = found[metric].dropna() if metric in found else {}
    return [values.get(str(row)) for row in rows]


def recorded_machine() -> dict[str, Any]:
    """What machine the recorded run was made on, and how; empty if nothing is recorded."""
    path = resources.files("llmserve").joinpath("data", "recorded", "machine.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def recorded_column() -> str:
    """The heading over recorded numbers."""
    stamp = recorded_machine()
    return f"recorded ({stamp['cpu']}, {stamp['cores']} cores)" if stamp else "recorded"
