"""One small file per policy, each overriding only what it fixes in the one before."""

from .base import Policy, first_come
from .bucketed import Bucketed
from .chunked import Chunked
from .continuous import Continuous
from .dynamic import Dynamic
from .mixed import Mixed
from .order import aged, by_priority, shortest_first, shortest_remaining
from .preemptive import ShortestRemaining
from .static import Static

__all__ = [
    "Bucketed",
    "Chunked",
    "Continuous",
    "Dynamic",
    "Mixed",
    "Policy",
    "ShortestRemaining",
    "Static",
    "aged",
    "by_priority",
    "first_come",
    "shortest_first",
    "shortest_remaining",
]
