"""Step times against what the machine could do at best."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from matplotlib.figure import Figure

from ..profiling import PARTS
from ..roofline import Peak, StepWork
from .style import FAINT, INK, MUTED, finish, new_figure, plain_log

OURS = "#0072B2"
PART_COLORS = ("#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#009E73", "#BBBBBB", "#444444")


def step_against_floor(
    work: StepWork,
    peak: Peak,
    context: int,
    batches: list[int],
    measured: dict[int, list[float]] | None = None,
) -> Figure:
    """Time of a decode step over batch size: reading, computing, and (if given) the measured steps."""
    figure, axes = new_figure(3.6, "A decode step: reading the weights hides the arithmetic")
    read = [work.bytes(batch, context) / peak.bandwidth * 1e3 for batch in batches]
    compute = [work.flops(batch, context) / peak.flops * 1e3 for batch in batches]
    axes.plot(batches, read, color=MUTED, linewidth=2)
    axes.plot(batches, compute, color="#D55E00", linewidth=2)
    axes.text(batches[0], read[0] * 0.88, "reading weights and KV (computed)", color=MUTED, va="top")
    axes.text(batches[2], compute[2] * 0.8, " arithmetic (computed)", color="#D55E00", va="top")
    if measured:
        middle = [median(measured[batch]) * 1e3 for batch in batches]
        low = [m - min(measured[b]) * 1e3 for m, b in zip(middle, batches, strict=True)]
        high = [max(measured[b]) * 1e3 - m for m, b in zip(middle, batches, strict=True)]
        axes.errorbar(batches, middle, yerr=[low, high], fmt="o-", color=OURS, capsize=3)
        above = 1.3 * max(max(measured[batch]) for batch in batches[:4]) * 1e3
        axes.text(batches[0], above, "measured step (median and range)", color=OURS, va="bottom")
    for axis in "xy":
        plain_log(axes, axis)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(xlabel="sequences in the batch", ylabel="milliseconds")
    return finish(figure)


def roofline(work: StepWork, peak: Peak, context: int, measured: dict[int, list[float]]) -> Figure:
    """FLOP/s over FLOP per byte: the roof, and a point for each measured batch size."""
    figure, axes = new_figure(3.6, "The same steps under this machine's roof")
    intensity = {b: work.flops(b, context) / work.bytes(b, context) for b in measured}
    left, right = min(intensity.values()) / 1.5, max(*intensity.values(), peak.ridge) * 1.6
    axes.plot([left, peak.ridge, right], [left * peak.bandwidth / 1e9, *[peak.flops / 1e9] * 2], color=INK)
    axes.axvline(peak.ridge, color=FAINT, linestyle=":", zorder=0)
    label = f"ridge {peak.ridge:.1f} FLOP/byte"
    axes.text(peak.ridge, peak.flops / 1e9 * 1.08, label, ha="center", va="bottom")
    lowest = min(work.flops(b, context) / median(measured[b]) for b in measured) / 1e9
    for batch, x in intensity.items():
        y = work.flops(batch, context) / median(measured[batch]) / 1e9
        axes.plot(x, y, "o", color=OURS)
        axes.annotate(f"{batch}", (x, y), (7, -9), textcoords="offset points", color=OURS)
    for axis in "xy":
        plain_log(axes, axis)
    axes.set(xlim=(left, right), ylim=(lowest / 1.6, peak.flops / 1e9 * 1.7))
    axes.set(xlabel="FLOP per byte read (labels: batch size)", ylabel="GFLOP/s")
    return finish(figure)


def step_parts(
    parts: Mapping[object, dict[str, float]],
    title: str = "Where the time of a decode step goes",
    ylabel: str = "batch",
) -> Figure:
    """A stacked bar a batch size (or another label): where the milliseconds of one step go."""
    figure, axes = new_figure(0.42 * len(parts) + 1.9, title)
    labels = [str(label) for label in parts]
    left = [0.0] * len(parts)
    for name, color in zip(PARTS, PART_COLORS, strict=True):
        widths = [part[name] * 1e3 for part in parts.values()]
        axes.barh(labels, widths, left=left, color=color, label=name, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", ylabel=ylabel)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return finish(figure)
