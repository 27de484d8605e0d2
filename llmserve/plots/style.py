"""One look for all figures: white, direct labels, one colour-blind safe colour per policy (Okabe and Ito)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

POLICY_COLORS = {
    "Static": "#D55E00",
    "Dynamic": "#E69F00",
    "Bucketed": "#CC79A7",
    "Continuous": "#0072B2",
    "Mixed": "#56B4E9",
    "Chunked": "#009E73",
    "ShortestRemaining": "#882255",
}
INK, MUTED, FAINT = "#222222", "#666666", "#BBBBBB"
POST = MUTED  # the post's figures, wherever they stand beside ours
WIDTH = 5.4  # inches: narrow, so that type of this size is still legible on a phone


def policy_color(policy: str) -> str:
    """The colour of a policy by its class name or its repr; ink for one that a reader wrote."""
    return POLICY_COLORS.get(policy.split("(")[0], INK)


def new_figure(height: float, title: str, rows: int = 1, cols: int = 1) -> tuple[Figure, Axes]:
    """A figure with one title that reads well without the caption."""
    sns.set_theme(
        style="ticks",
        rc={
            "font.size": 11,
            "axes.titlesize": 12,
            "axes.labelsize": 11,
            "xtick.labelsize": 10.5,
            "ytick.labelsize": 10.5,
            "axes.edgecolor": MUTED,
            "text.color": INK,
            "axes.labelcolor": INK,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "figure.dpi": 160,
            "hatch.linewidth": 0.6,
        },
    )
    figure, axes = plt.subplots(rows, cols, figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    return figure, axes


def plain_log(axes: Axes, which: str) -> None:
    """Make the "x" or "y" axis logarithmic, with plain numbers on it."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finish(figure: Figure) -> Figure:
    """Despine, and close it so that a notebook shows it once: as the cell's value."""
    sns.despine(figure)
    plt.close(figure)
    return figure
