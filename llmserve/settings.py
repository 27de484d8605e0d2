"""What a reader may choose: scale, weights, device, dtype, products and threads, by environment variable."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHOICES = {
    "scale": ("quick", "full"),
    "weights": ("auto", "pretrained", "random"),
    "device": ("cpu", "cuda", "mps"),
    "dtype": ("float32", "float64", "bfloat16", "float16"),
    "products": ("auto", "streamed", "packed", "plain"),
}


@dataclass(frozen=True)
class Settings:
    """The choices of one session. `weights="auto"` takes pretrained ones if they are already local.

    products   the form of the weight products (`models/linear.py`). "auto" takes what needs no compiler;
               "streamed" compiles one C file when first used, and is the fastest on a CPU.
    """

    scale: str = "quick"
    weights: str = "auto"
    device: str = "cpu"
    dtype: str = "float32"
    products: str = "auto"
    threads: int = 1

    @property
    def full(self) -> bool:
        return self.scale == "full"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read LLMSERVE_SCALE, _WEIGHTS and so on, by the fields' names; raise ValueError on a bad one."""
        chosen = {}
        for name, allowed in CHOICES.items():
            value = environ.get(f"LLMSERVE_{name.upper()}") or getattr(cls, name)
            if value not in allowed:
                raise ValueError(f"LLMSERVE_{name.upper()}={value!r}: choose one of {', '.join(allowed)}")
            chosen[name] = value
        return cls(**chosen, threads=_threads(environ.get("LLMSERVE_THREADS")))


def _threads(text: str | None) -> int:
    if not text:
        return available_cores()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"LLMSERVE_THREADS={text!r}: give a whole number of threads, at least 1")
    return int(text)


def available_cores() -> int:
    """The cores this process may really use: its affinity, cut down to its container's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, min(cores, math.floor(quota)) if quota else cores)


def cgroup_quota(folder: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs granted by the container (cgroup v2, then v1), or None where there is no limit."""
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = int((folder / "cpu/cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu/cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError):
        return None
