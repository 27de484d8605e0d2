"""Every figure of the book, one function each. They return a matplotlib Figure."""

from .comparison import against_post
from .roofline import roofline, step_against_floor, step_parts
from .style import POLICY_COLORS
from .timeline import timeline

__all__ = ["POLICY_COLORS", "against_post", "roofline", "step_against_floor", "step_parts", "timeline"]
