"""Memory of a process's own: taken page by page, when it is first written, and given back when freed."""

from __future__ import annotations

import ctypes
import math
import mmap
import platform

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20  # bytes


def zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, huge: bool = False
) -> Tensor:
    """Zeros that cost no memory on a CPU until they are written. torch.zeros writes them all at once.

    huge: in pages of 2 MiB, where the system has them. What is read from end to end in each step, as
    weights are, is found faster so; what is filled bit by bit would cost whole pages at once.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Private: a shared mapping would be given pages for being read, too. (Windows knows no such flags.)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    count = math.prod(shape)
    room = mmap.mmap(-1, count * dtype.itemsize + huge * HUGE_PAGE, **private)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        room.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(room, dtype=dtype)
    start = -numbers.data_ptr() % HUGE_PAGE // dtype.itemsize if huge else 0
    return numbers[start : start + count].view(shape)


def give_back() -> None:
    """Return what has been freed to the system. glibc keeps up to some 100 MB of it for the next to ask."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
