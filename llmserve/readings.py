"""A chapter's readings, kept in its cell's output; and its recorded ones, to stand beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
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
    """Medians of the recorded table, a row each, a column a metric; empty if there is none of it."""
    rows = _lines(table)
    if rows.empty:
        return pd.DataFrame()
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


def recorded_machine(table: str) -> dict[str, Any]:
    """What machine this table was recorded on, and how; empty if it is not recorded."""
    rows = _lines(table)
    if rows.empty:
        return {}
    runs = json.loads(_data("machine.json").read_text(encoding="utf-8"))
    return next(run for run in runs if rows.chapter.iloc[0] in run["chapters"])


def recorded_column(table: str) -> str:
    """The heading over the recorded numbers of this table."""
    stamp = recorded_machine(table)
    return f"recorded ({stamp['cpu']}, {stamp['cores']} cores)" if stamp else "recorded"


def _lines(table: str) -> pd.DataFrame:
    """The recorded readings of a table, a line each; empty if there is none of it."""
    path = _data("readings.csv")
    if not path.is_file():
        return pd.DataFrame()
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype={"row": str}).query("table == @table")


def _data(name: str) -> Traversable:
    return resources.files("llmserve").joinpath("data", "recorded", name)
