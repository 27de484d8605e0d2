"""Lines with their names at the end: readings over a parameter, queues over time, tails of a distribution."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..metrics import request_times
from ..run import Run
from .style import INK, MUTED, finish, new_figure, plain_log, policy_color

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def lines(
    series: Mapping[str, Mapping[float, Sequence[float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    log: str = "",
    colors: Mapping[str, str] | None = None,
    ticks: Sequence[float] | None = None,
) -> Figure:
    """The median of each x's readings as a line, their range as a band. `log` names axes: "x", "y", "xy"."""
    figure, axes = new_figure(3.4, title)
    ends: list[tuple[float, float, str, str]] = []
    for (name, readings), fallback in zip(series.items(), itertools.cycle(PALETTE), strict=False):
        color = (colors or {}).get(name, fallback)
        xs = sorted(readings)
        middle = [median(readings[x]) for x in xs]
        axes.plot(xs, middle, "o-", color=color, markersize=4)
        low, high = ([pick(readings[x]) for x in xs] for pick in (min, max))
        axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
        ends.append((middle[-1], xs[-1], name, color))
    for axis in log:
        plain_log(axes, axis)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if "y" not in log:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _name_ends(axes, ends)
    return finish(figure)


def _name_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Each line's name at its end, moved up where two would lie on each other."""
    lowest = -1.0
    for y, x, name, color in sorted(ends):
        height = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[1]
        lowest = max(height, lowest + 0.075)
        style = {"color": color, "va": "center", "annotation_clip": False}
        axes.annotate(f" {name}", (1.0, lowest), xycoords="axes fraction", **style)


def queues(runs: Mapping[str, Run], title: str) -> Figure:
    """How many requests wait, over time, one line a policy."""
    figure, axes = new_figure(3.0, title)
    for name, run in runs.items():
        color, times = policy_color(run.policy), [step.end for step in run.log]
        waiting = [step.num_waiting for step in run.log]
        axes.step(times, waiting, where="post", color=color, linewidth=1.8)
        most = max(range(len(waiting)), key=waiting.__getitem__)
        axes.annotate(f"{name} ", (times[most], waiting[most]), color=color, ha="right", va="bottom")
    last = max(request.arrival_time for request in next(iter(runs.values())).submitted)
    axes.axvline(last, color=MUTED, linestyle=":", zorder=0)
    axes.text(last, 1.0, " last arrival", color=MUTED, va="bottom", transform=axes.get_xaxis_transform())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="time (s)", ylabel="requests waiting", xlim=(0, None), ylim=(0, None))
    return finish(figure)


def gap_tails(runs: Mapping[str, Run], title: str) -> Figure:
    """What share of all gaps between tokens is longer than x: the tail that an average hides."""
    figure, axes = new_figure(3.2, title)
    for name, run in runs.items():
        gaps = sorted(gap * 1e3 for request in request_times(run) for gap in request.gaps)
        share = [(len(gaps) - i) / len(gaps) for i in range(len(gaps))]
        axes.step(gaps, share, where="post", color=policy_color(run.policy), linewidth=1.8)
        tip = (gaps[-1], share[-1])
        axes.annotate(f" {name}", tip, color=policy_color(run.policy), annotation_clip=False)
    axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
    beside = {"transform": axes.get_yaxis_transform(), "fontsize": 10, "color": MUTED}
    axes.text(0.01, 0.0105, "one gap in a hundred", va="bottom", **beside)
    for axis in "xy":
        plain_log(axes, axis)
    low, high = axes.get_xlim()
    ticks = [tick for tick in (10, 20, 50, 100, 200, 500, 1000, 2000) if low < tick < high]
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.set(xlabel="gap between two tokens (ms)", ylabel="share of gaps longer")
    return finish(figure)


def memory_over_steps(series: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Megabytes after each step of a run, one named line a kind of memory."""
    figure, axes = new_figure(3.2, title)
    ends = []
    for (name, values), color in zip(series.items(), itertools.cycle(PALETTE), strict=False):
        axes.plot(range(len(values)), values, color=color, linewidth=1.8)
        ends.append((values[-1], len(values) - 1.0, name, color))
    axes.set(xlabel="step", ylabel="MB", xlim=(0, None), ylim=(0, None))
    _name_ends(axes, ends)
    return finish(figure)
