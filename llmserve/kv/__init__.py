"""The tensors that hold K and V, and attention over them. What runs, and why, is none of their business."""

from .cat import CatCache
from .paged import PagedCache
from .slot import SlotCache

__all__ = ["CatCache", "PagedCache", "SlotCache"]
