"""What machine a number came from, and what that machine can do at best.

Importing this module needs the standard library only; the measurements import torch when called.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

from .roofline import Peak


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


def resident_bytes() -> int:
    """How much memory the system has really given to this process.

    On Linux only pages that were written count: one that was only read is the system's one page of zeros.
    """
    try:
        found = re.search(r"^RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        if found:
            return int(found.group(1)) * 1024
    except OSError:
        pass
    import psutil

    return psutil.Process().memory_info().rss


def measure_peak(
    device: str = "cpu", dtype: str = "float32", products: str = "auto", rounds: int = 5
) -> Peak:
    """This machine's peak bandwidth and matrix rate, the best of some rounds of each.

    Bandwidth: the sum of a tensor far larger than any cache, or a streamed product of one row with it.
    Matrix rate: products of the shapes of GPT-2's largest layer at many rows, in every form that the
    engine may use; the best counts, so that no utilisation comes out above 1.
    """
    import torch

    from .models.linear import PlainLinear, choose_linear

    kind = getattr(torch, dtype)
    forms = {PlainLinear, choose_linear("auto", kind, device), choose_linear(products, kind, device)}
    with torch.inference_mode():
        stream = torch.ones(2**26, dtype=kind, device=device)  # 256 MiB in float32
        bandwidth = stream.nbytes / _best_seconds(stream.sum, device, rounds)
        if products == "streamed":  # reads faster than the sum where the sum waits for memory
            read, x = choose_linear(products, kind, device)(stream.view(-1, 1024)), stream[:1024].view(1, -1)
            bandwidth = max(bandwidth, stream.nbytes / _best_seconds(lambda: read(x), device, rounds))
        del stream
        weight, rates = torch.randn(3072, 768, dtype=kind, device=device), []
        for rows in (512, 1024, 2048):
            x = torch.randn(rows, 768, dtype=kind, device=device)
            for form in forms:
                product = form(weight)
                seconds = _best_seconds(lambda x=x, product=product: product(x), device, 2 * rounds)
                rates.append(2 * rows * weight.numel() / seconds)
    return Peak(bandwidth, max(rates))


def _best_seconds(call: Callable[[], object], device: str, rounds: int) -> float:
    import torch

    def synchronise() -> None:
        if device != "cpu":
            getattr(torch, device).synchronize()

    call()
    seconds = []
    for _ in range(rounds):
        synchronise()
        start = time.perf_counter()
        call()
        synchronise()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
