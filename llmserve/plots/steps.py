"""The step-time curve with its knee, and when one request got its tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..knee import Knee
from .style import FAINT, INK, MUTED, finish, new_figure, plain_log, policy_color

OURS = "#0072B2"


def knee_curve(
    readings: Mapping[int, Sequence[float]],
    knee: Knee,
    between: tuple[float, float],
    ridge: float,
    title: str,
) -> Figure:
    """Seconds of a step over its tokens, the fitted break with its range, and where the ridge says it is."""
    figure, axes = new_figure(3.6, title)
    tokens = sorted(readings)
    middle, low, high = ([pick(readings[n]) * 1e3 for n in tokens] for pick in (median, min, max))
    axes.vlines(tokens, low, high, color=OURS, linewidth=2)
    axes.plot(tokens, middle, "o", color=OURS, markersize=5)
    fine = [tokens[0] * (tokens[-1] / tokens[0]) ** (i / 200) for i in range(201)]
    axes.plot(fine, [knee.seconds(n) * 1e3 for n in fine], color=INK, linewidth=1.2)
    for axis in "xy":
        plain_log(axes, axis)
    axes.axvspan(*between, color=FAINT, alpha=0.5, linewidth=0)
    axes.axvline(ridge, color="#D55E00", linestyle="--")
    top = max(high)
    axes.text(knee.tokens, top, f"knee {knee.tokens:.0f} ", ha="right", va="top", color=INK)
    axes.text(ridge, top, f" ridge says {ridge:.0f}", ha="left", va="top", color="#D55E00")
    axes.set_xticks([n for n in tokens if n & (n - 1) == 0], [str(n) for n in tokens if n & (n - 1) == 0])
    ticks = [n for n in (5, 10, 20, 50, 100, 200, 500, 1000, 2000) if 0.7 * min(low) < n < 1.5 * top]
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.set(xlabel="tokens in the step", ylabel="milliseconds")
    return finish(figure)


def token_times(times: Mapping[str, Sequence[float]], title: str) -> Figure:
    """One lane a policy, one tick a token, from the first token on; the longest gap is marked."""
    figure, axes = new_figure(0.5 * len(times) + 1.3, title)
    for y, (policy, of_policy) in enumerate(times.items()):
        since = [time - of_policy[0] for time in of_policy]
        axes.vlines(since, y - 0.3, y + 0.3, color=policy_color(policy), linewidth=1.1)
        gap, start = max(((b - a, a) for a, b in itertools.pairwise(since)), default=(0.0, 0.0))
        axes.plot([start, start + gap], [y, y], color=INK, linewidth=2.2)
        axes.text(start + gap / 2, y - 0.33, f"{gap * 1e3:.0f} ms", ha="center", va="bottom", fontsize=9.5)
    axes.set_yticks(range(len(times)), list(times))
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="seconds after its first token", ylim=(len(times) - 0.4, -0.85))
    axes.spines["left"].set_color(MUTED)
    return finish(figure)


def frontier(
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    log: str = "",
) -> Figure:
    """What is bought against what is paid: a named dot a policy, with the range of its rounds both ways."""
    figure, axes = new_figure(3.5, title)
    for name, (xs, ys) in points.items():
        x, y, color = median(xs), median(ys), policy_color(name)
        axes.plot([min(xs), max(xs)], [y, y], color=color, linewidth=1.5)
        axes.plot([x, x], [min(ys), max(ys)], color=color, linewidth=1.5)
        axes.plot(x, y, "o", color=color, markersize=8)
    for axis in log:
        plain_log(axes, axis)
    axes.margins(x=0.12, y=0.12)
    if "y" not in log:
        axes.set_ylim(bottom=0)
    if "x" not in log:
        axes.set_xlim(left=0)
    _name_dots(axes, {name: (median(xs), median(ys)) for name, (xs, ys) in points.items()})
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return finish(figure)


def _name_dots(axes: Axes, dots: Mapping[str, tuple[float, float]]) -> None:
    """A name beside each dot, moved up along a thin line where it would lie on another."""
    to_axes = axes.transData + axes.transAxes.inverted()
    placed: list[tuple[float, float]] = []
    for name, dot in sorted(dots.items(), key=lambda item: item[1][1]):
        x, y = to_axes.transform(dot)
        at = y
        while any(abs(x - other) < 0.3 and abs(at - height) < 0.075 for other, height in placed):
            at += 0.01
        placed.append((x, at))
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.8} if at > y else None
        where = {"xycoords": "data", "textcoords": "axes fraction", "va": "center", "arrowprops": line}
        axes.annotate(name, dot, (x + 0.03, at), color=policy_color(name), annotation_clip=False, **where)
