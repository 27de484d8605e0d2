"""This run beside the post's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.figure import Figure

from ..posts import COLUMN
from ..readings import recorded_column
from .style import POST, finish, new_figure


def against_post(
    labels: Sequence[str],
    ours: Sequence[Sequence[float]],
    post: Sequence[float],
    title: str,
    xlabel: str,
    color: str,
    ylabel: str = "",
    recorded: Sequence[float] | None = None,
    table: str = "",
) -> Figure:
    """One row a setting: this run's median and range, the recorded machine's and the post's value.

    table: the one that the recorded values were kept in, which says what machine that is.
    """
    figure, axes = new_figure(0.4 * len(labels) + 1.6, title)
    rows = range(len(labels))
    low, middle, high = ([pick(values) for values in ours] for pick in (min, median, max))
    axes.hlines(rows, low, high, color=color, linewidth=2.5)
    axes.plot(middle, rows, "o", color=color, markersize=8, label="this run (median, range)")
    if recorded:
        told = recorded_column(table)
        axes.plot(recorded, rows, "s", color=POST, markerfacecolor="none", markersize=7, label=told)
    axes.plot(post, rows, "D", color=POST, markerfacecolor="white", markersize=7, label=COLUMN)
    axes.set_yticks(rows, labels)
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(len(labels) - 0.5, -0.5))
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#EEEEEE")
    figure.legend(loc="outside lower center", ncols=1 if recorded else 2, frameon=False, fontsize=10.5)
    return finish(figure)
