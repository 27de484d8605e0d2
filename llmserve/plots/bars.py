"""Batch sizes at launch, spreads over seeds, and one panel a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure

from ..posts import COLUMN
from ..readings import recorded_column
from .style import FAINT, INK, MUTED, POST, finish, new_figure, policy_color


def launch_sizes(launches: Mapping[str, Sequence[int]], slots: int, title: str) -> Figure:
    """One row a policy, one bar a launch: how many requests the batch started with."""
    figure, _ = new_figure(1.15 * len(launches) + 1.0, title, rows=len(launches))
    for (name, sizes), panel in zip(launches.items(), figure.axes, strict=True):
        numbers = range(1, len(sizes) + 1)
        panel.bar(numbers, sizes, color=policy_color(name), width=0.7)
        panel.axhline(slots, color=FAINT, linestyle=":")
        for number, size in zip(numbers, sizes, strict=True):
            panel.text(number, size, f"{size}", ha="center", va="bottom", fontsize=10)
        panel.set(ylim=(0, slots * 1.35), yticks=[0, slots], ylabel=name.split("(")[0])
        most = max(map(len, launches.values()))
        panel.set(xlim=(0.4, most + 0.6), xticks=range(1, most + 1))
    figure.axes[-1].set_xlabel("launch (bar: requests in the batch)")
    return finish(figure)


def spread(
    values: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    reference: float = 1.0,
    policy: str = "Dynamic",
) -> Figure:
    """A dot a seed, the median marked, against a reference line."""
    figure, axes = new_figure(0.75 * len(values) + 1.3, title)
    for y, dots in enumerate(values.values()):
        heights = [y + 0.22 * ((i * 7) % 5 - 2) / 2 for i in range(len(dots))]
        axes.plot(dots, heights, "o", color=policy_color(policy), alpha=0.55, markersize=5)
        axes.plot([median(dots)] * 2, [y - 0.36, y + 0.36], color=INK, linewidth=2)
        axes.text(median(dots), y - 0.38, f"median {median(dots):.2f}", ha="center", va="bottom", fontsize=10)
    axes.axvline(reference, color=MUTED, linestyle=":")
    axes.set_yticks(range(len(values)), list(values))
    axes.set(xlabel=xlabel, ylim=(len(values) - 0.4, -0.75))
    return finish(figure)


def metric_dots(
    readings: Mapping[str, Mapping[str, Sequence[float]]],
    post: Mapping[str, Mapping[str, float]],
    title: str,
    other: str = COLUMN,
    dots: str = "this run, median and range",
    recorded: Mapping[str, Mapping[str, float]] | None = None,
    table: str = "",
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """One panel a metric, one row a policy: this run's median and range, and others beside it.

    readings: metric label -> policy -> a reading a round. post: metric label -> policy -> value, a
    diamond, the post's or that of whatever `other` names. recorded: the same of the recorded machine,
    a square; table: the one that they were kept in, which says what machine that is. colors: of
    rows that are no policy's name.
    """
    rows = -(-len(readings) // 2)
    policies = list(next(iter(readings.values())))
    figure, axes = new_figure(rows * (0.27 * len(policies) + 0.85) + 0.9, title, rows=rows, cols=2)
    panels = list(axes.flat)
    for panel, (metric, by_policy) in zip(panels, readings.items(), strict=False):
        for y, (policy, values) in enumerate(by_policy.items()):
            color = (colors or {}).get(policy) or policy_color(policy)
            panel.plot([min(values), max(values)], [y, y], color=color, linewidth=2.5)
            panel.plot(median(values), y, "o", color=color, markersize=7)
            for values, shape in ((post, "D"), (recorded or {}, "s")):
                value = values.get(metric, {}).get(policy)
                if value is not None:
                    panel.plot(value, y, shape, color=POST, markerfacecolor="none", markersize=6)
        panel.set_title(metric, loc="left", fontsize=10.5)
        panel.set(ylim=(len(policies) - 0.5, -0.5), yticks=range(len(policies)))
        panel.set_yticklabels(policies if panel.get_subplotspec().is_first_col() else [])
        panel.set_xlim(0, 1.12 * panel.get_xlim()[1])
        panel.grid(axis="y", color="#EEEEEE")
    for panel in panels[len(readings) :]:
        panel.set_axis_off()
    beside = [f"squares: {recorded_column(table)}"] if recorded and any(recorded.values()) else []
    beside += [f"diamonds: {other}"] if post else []
    between = "; " if len(beside) < 2 else "\n"
    figure.supxlabel(between.join([f"dots: {dots}", *beside]), fontsize=10)
    return finish(figure)
