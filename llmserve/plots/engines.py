"""Engines beside each other: how many tokens a second."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..beside import Race
from .style import INK, MUTED, finish, new_figure, policy_color


def engine_rates(race: Race, most: float) -> Figure:
    """A row an engine, the fastest on top: median and range of its rounds. `most`: what none can exceed."""
    racers = sorted(race.racers, key=lambda racer: -racer.rate)
    figure, axes = new_figure(0.36 * len(racers) + 1.5, "The same requests on several engines")
    for y, racer in enumerate(racers):
        color = policy_color("Continuous") if racer.is_ours else INK
        rates = racer.tokens_per_second
        axes.plot([min(rates), max(rates)], [y, y], color=color, linewidth=2.5)
        axes.plot(racer.rate, y, "o", color=color, markersize=7)
        place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "color": color}
        axes.annotate(f"{racer.rate:.0f}", (max(rates), y), **place)
    axes.axvline(most, color=MUTED, linestyle=":")
    axes.text(most, -0.75, "limit", ha="center", va="bottom", color=MUTED, fontsize=10)
    axes.set_yticks(range(len(racers)), [racer.label for racer in racers])
    for label, racer in zip(axes.get_yticklabels(), racers, strict=True):
        label.set_color(policy_color("Continuous") if racer.is_ours else INK)
    axes.set(
        xlabel="output tokens/s: median and range", xlim=(0, 1.08 * most), ylim=(len(racers) - 0.5, -0.8)
    )
    axes.grid(axis="y", color="#EEEEEE")
    return finish(figure)
