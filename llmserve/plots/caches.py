"""A picture of the two caches: one rectangle for all, and a slot each."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from .style import FAINT, INK, MUTED, POLICY_COLORS, finish, new_figure


def caches(lengths: Mapping[str, int], slot_tokens: int) -> Figure:
    """Requests of so many tokens: in one tensor, and in slots of `slot_tokens`."""
    figure, (left, right) = new_figure(0.5 * len(lengths) + 1.2, "One tensor, or a slot each", cols=2)
    color = POLICY_COLORS["Continuous"]
    for panel in (left, right):
        for y, (name, tokens) in enumerate(lengths.items()):
            panel.barh(y, tokens, height=0.7, color=color)
            panel.text(0.4, y, name, color="white", va="center", fontweight="bold")
        panel.set(xlim=(0, slot_tokens + 0.5), ylim=(len(lengths) - 0.4, -0.6), yticks=[], xlabel="tokens")
    longest = max(lengths.values())
    frame = {"fill": False, "edgecolor": INK, "linestyle": "--", "linewidth": 1.2}
    left.barh((len(lengths) - 1) / 2, longest, height=len(lengths) - 0.1, **frame)
    left.set_title("cat: one length for all", loc="left", fontsize=10.5)
    for y in range(len(lengths)):
        right.barh(y, slot_tokens, height=0.7, fill=False, edgecolor=FAINT, linewidth=1.2, zorder=0)
    right.text(slot_tokens - 0.4, 0, "reserved", ha="right", va="center", color=MUTED, fontsize=10)
    right.set_title("slots: each its own", loc="left", fontsize=10.5)
    return finish(figure)
