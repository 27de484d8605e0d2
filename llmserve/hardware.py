"""What machine a number came from, and what that machine can do at best.

Importing this module needs the standard library only; the measurements import torch when called.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path


def machine() -> dict[str, str | int | float]:
    """CPU name, cores, memory (GiB), system and Python: no host name, no paths."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "arch": platform.machine(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.M)
        if found:
            return found.group(1).strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        import subprocess

        query = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if query.stdout.strip():
            return query.stdout.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return 0.0
