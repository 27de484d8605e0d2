"""Every figure of the book, one function each. They return a matplotlib Figure."""

from .comparison import against_post
from .roofline import roofline, step_against_floor, step_parts
from .timeline import timeline

__all__ = ["against_post", "roofline", "step_against_floor", "step_parts", "timeline"]
