"""A picture of paged memory: block tables above, the blocks that they name below."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .lines import PALETTE
from .style import FAINT, INK, MUTED, finish, new_figure

SHARED = MUTED


def block_tables(
    tables: Mapping[str, Sequence[int]], tokens: Mapping[str, int], num_blocks: int, block_size: int
) -> Figure:
    """Who holds which blocks. tables: request -> its blocks, in order; tokens: how many each has there."""
    figure, axes = new_figure(0.5 * len(tables) + 1.7, "Tables name blocks; blocks lie anywhere")
    colors = dict(zip(tables, itertools.cycle(PALETTE), strict=False))
    holders = {block: [name for name in tables if block in tables[name]] for block in range(num_blocks)}
    shade = {b: SHARED if len(names) > 1 else colors[names[0]] for b, names in holders.items() if names}
    fill = {
        block: min(block_size, tokens[name] - at * block_size)
        for name, table in tables.items()
        for at, block in enumerate(table)
    }
    for row, (name, table) in enumerate(tables.items()):
        axes.text(-0.3, row + 0.4, name, ha="right", va="center", color=colors[name], fontweight="bold")
        for at, block in enumerate(table):
            _block(axes, at, row, shade[block], 1.0, str(block))
    bottom = len(tables) + 0.5
    for block in range(num_blocks):
        _block(axes, block, bottom, shade.get(block), fill.get(block, 0) / block_size, str(block))
    axes.text(-0.3, bottom + 0.4, "memory", ha="right", va="center")
    legend = f"filled: tokens there, {block_size} a block; grey: shared; empty: free"
    axes.text(0, bottom + 1.05, legend, va="top", color=MUTED, fontsize=10)
    axes.set(xlim=(-2.2, num_blocks), ylim=(bottom + 1.5, -0.2))
    axes.set_axis_off()
    return finish(figure)


def _block(axes: Axes, x: float, y: float, color: str | None, share: float, number: str) -> None:
    if color:
        axes.add_patch(_box(x, y, 0.86 * share, facecolor=color, edgecolor="none"))
    axes.add_patch(_box(x, y, 0.86, fill=False, edgecolor=color or FAINT, linewidth=1.2))
    ink = "white" if color and share > 0.6 else INK
    axes.text(x + 0.43, y + 0.4, number, ha="center", va="center", color=ink, fontsize=10)


def _box(x: float, y: float, width: float, **style: Any) -> Rectangle:
    return Rectangle((x, y), width, 0.8, **style)
