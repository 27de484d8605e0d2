"""Every figure of the book, one function each. They return a matplotlib Figure."""

from .bars import launch_sizes, metric_dots, spread
from .blocks import block_tables
from .caches import caches
from .comparison import against_post
from .engines import engine_rates
from .lines import gap_tails, lines, memory_over_steps, queues
from .order import ORDER_COLORS, prices, waits
from .roofline import roofline, step_against_floor, step_parts
from .steps import frontier, knee_curve, token_times
from .style import POLICY_COLORS
from .timeline import lives, timeline, timelines

__all__ = [
    "ORDER_COLORS",
    "POLICY_COLORS",
    "against_post",
    "block_tables",
    "caches",
    "engine_rates",
    "frontier",
    "gap_tails",
    "knee_curve",
    "launch_sizes",
    "lines",
    "lives",
    "memory_over_steps",
    "metric_dots",
    "prices",
    "queues",
    "roofline",
    "spread",
    "step_against_floor",
    "step_parts",
    "timeline",
    "timelines",
    "token_times",
    "waits",
]
