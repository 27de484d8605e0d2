"""Is this machine fit for the book? Each thing looked at is a line: ok, warn or fail, with a remedy."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median

from .metrics import percentile
from .settings import Settings, available_cores, cgroup_quota

GIB = 2**30
MEMORY_NEEDED = 1.6e9  # bytes: what a chapter keeps resident at most at quick scale
OLDEST_PYTHON = (3, 11)
NEEDED = ("torch", "transformers", "numpy", "scipy", "pandas", "matplotlib", "seaborn", "tqdm", "joblib")
TIMINGS = 200  # copies of COPIED bytes, as a decode step streams the weights: two to four seconds
COPIED = 2**25
NOISY = 1.25  # a twentieth of the timings take more than so many times the median
DISTURBED = 0.9  # less CPU time than this share of the wall time: another process took the rest
MOST_SHOWN = 6


@dataclass(frozen=True)
class Finding:
    """One line. ok; warn: the book runs, less well; fail: it cannot run here, or not as it is set."""

    name: str
    state: str
    says: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<5} {self.name:<9} {self.says}"
        return f"{line}\n{'':<16}{self.remedy}" if self.remedy else line


def examine(environ: os._Environ[str] | dict[str, str] = os.environ) -> Iterator[Finding]:
    """Every finding as soon as it is made; some ten seconds in all, most of it importing torch."""
    try:
        settings = Settings.from_env(environ)
    except ValueError as error:
        yield Finding("settings", "fail", str(error))
        settings = Settings(threads=available_cores())
    yield python(sys.version_info[:2])
    yield threads(settings.threads, available_cores(), os.cpu_count() or 1)
    yield quota(cgroup_quota(), os.cpu_count() or 1)
    yield memory(free_bytes())
    yield noise(*measure_noise())
    yield versions(pins(), installed)
    yield weights(settings.weights)
    yield from with_torch(settings)


def python(version: tuple[int, int]) -> Finding:
    told, oldest = (".".join(map(str, one)) for one in (version, OLDEST_PYTHON))
    if version >= OLDEST_PYTHON:
        return Finding("python", "ok", told)
    return Finding("python", "fail", f"{told}, older than {oldest}", f"install Python {oldest} or newer")


def threads(chosen: int, available: int, cores: int) -> Finding:
    """`available` cores are those that this process may use of all the machine's `cores`."""
    says = f"{chosen} of torch on {available} usable cores ({cores} in the machine)"
    if chosen <= available:
        return Finding("threads", "ok", says)
    remedy = f"unset LLMSERVE_THREADS, or set it to {available}: threads without a core wait for each other"
    return Finding("threads", "warn", says, remedy)


def quota(cpus: float | None, cores: int) -> Finding:
    """The container's CPU quota; None: there is no limit."""
    if cpus is None:
        return Finding("quota", "ok", "no CPU limit of a container")
    says = f"the container may use {cpus:.2g} of {cores} CPUs"
    if cpus >= 1:
        return Finding("quota", "ok", says)
    remedy = "give it at least one CPU: below that each step is stopped midway, and timings mean little"
    return Finding("quota", "warn", says, remedy)


# -- memory ----------------------------------------------------------------------------------------


def memory(free: float | None) -> Finding:
    """`free` bytes that this process may still take; None where the system does not say."""
    needed = f"a chapter needs {MEMORY_NEEDED / 1e9:.1f} GB"
    if free is None:
        return Finding("memory", "warn", f"the system does not say how much is free; {needed}")
    says = f"{free / 1e9:.1f} GB free, {needed}"
    if free >= MEMORY_NEEDED:
        return Finding("memory", "ok", says)
    return Finding("memory", "warn", says, "close other programs, or give the container more memory")


def free_bytes() -> float | None:
    """What is free in the machine or left of the container's limit, whichever is less; None: unknown."""
    known = [value for value in (_free_in_machine(), _left_in_container()) if value is not None]
    return min(known, default=None)


def _free_in_machine() -> float | None:
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
        if found:
            return int(found.group(1)) * 1024
    except OSError:
        pass
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory().available


def _left_in_container() -> float | None:
    """Of cgroup v2, then v1; the page cache in it can be given back and counts as free."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, taken = (int((Path(folder) / name).read_text()) for name in (limit, used))
            stat = (Path(folder) / "memory.stat").read_text()
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        cached = sum(map(int, re.findall(r"^(?:in)?active_file (\d+)", stat, re.M)))
        return most - taken + cached
    return None


# -- noise -----------------------------------------------------------------------------------------


def measure_noise(timings: int = TIMINGS, size: int = COPIED) -> tuple[list[float], float]:
    """Seconds of equal copies of `size` bytes, and the share of that time in which this process ran."""
    source, target, seconds = bytearray(size), bytearray(size), []
    target[:] = source  # the first touch is the system's work
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(timings):
        start = time.perf_counter()
        target[:] = source
        seconds.append(time.perf_counter() - start)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return seconds, cpu / wall


def noise(seconds: list[float], cpu_share: float) -> Finding:
    """Whether equal work takes equal time here."""
    middle, slow = median(seconds), percentile(seconds, 95)
    says = (
        f"{len(seconds)} equal copies: median {1e3 * middle:.1f} ms, {1e3 * min(seconds):.1f} to "
        f"{1e3 * max(seconds):.1f}, one in twenty above {slow / middle:.2f} × the median; "
        f"{cpu_share:.0%} of the time on the CPU"
    )
    if slow <= NOISY * middle and cpu_share >= DISTURBED:
        return Finding("noise", "ok", says)
    remedy = "something else is busy here: close it, or wait, before you measure (`top` shows what it is)"
    return Finding("noise", "warn", says, remedy)


# -- what is installed -----------------------------------------------------------------------------


def installed(name: str) -> str | None:
    """A package's version, None if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def pins(folders: tuple[Path, ...] = (Path(__file__).parents[1], Path())) -> dict[str, str] | None:
    """What requirements.txt pins, beside the package or in this folder; None if it is not at hand."""
    for folder in folders:
        path = folder / "requirements.txt"
        if path.is_file():
            return dict(re.findall(r"^([\w.-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), re.M))
    return None


def versions(pinned: dict[str, str] | None, version: Callable[[str], str | None]) -> Finding:
    """Packages against the pins; a local part such as +cpu does not count."""
    missing = [name for name in NEEDED if version(name) is None]
    install = "pip install -r requirements.txt, or let `make setup` do it"
    if missing:
        return Finding("versions", "fail", f"not installed: {', '.join(missing)}", install)
    if pinned is None:
        return Finding("versions", "ok", "all there; no requirements.txt at hand to compare them with")
    other = [
        f"{name} {version(name) or 'missing'} (pinned {pin})"
        for name, pin in pinned.items()
        if (version(name) or "").partition("+")[0] != pin
    ]
    if not other:
        return Finding("versions", "ok", f"all {len(pinned)} packages as pinned")
    more = f" and {len(other) - MOST_SHOWN} more" if len(other) > MOST_SHOWN else ""
    return Finding("versions", "warn", ", ".join(other[:MOST_SHOWN]) + more, install)


def weights(choice: str) -> Finding:
    from .models import load

    if load.local_folder():
        return Finding("weights", "ok", "pretrained GPT-2 is in the local Hugging Face cache")
    remedy = "`python -m llmserve download` fetches them once (about 550 MB)"
    if choice == "pretrained":
        says = "LLMSERVE_WEIGHTS=pretrained, but they are not on this machine"
        return Finding("weights", "fail", says, f"{remedy}; or unset LLMSERVE_WEIGHTS")
    says = (
        "no pretrained ones on this machine: random ones then, with the same timings; the text is gibberish"
    )
    return Finding("weights", "ok" if choice == "random" else "warn", says, remedy)


# -- what needs torch ------------------------------------------------------------------------------


def with_torch(settings: Settings) -> Iterator[Finding]:
    if not installed("torch"):
        return  # said before, under versions
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # a library it is built on is missing, say
        first = str(error).strip().splitlines()[0]
        yield Finding("torch", "fail", f"it cannot be imported: {first}", "install it anew")
        return
    yield device(settings.device)
    yield streamed(settings.products)


def device(chosen: str) -> Finding:
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if there[chosen]:
        return Finding("device", "ok", chosen)
    remedy = "unset LLMSERVE_DEVICE, or install a torch built for this device"
    return Finding("device", "fail", f"torch cannot use {chosen} here", remedy)


def streamed(products: str) -> Finding:
    """Whether the one C file compiles and agrees with plain products; it is compiled to find out."""
    import torch

    from .models.linear import why_not_streamed

    reason = why_not_streamed(torch.float32, "cpu")
    if reason is None:
        return Finding("compiler", "ok", "streamed products work here (LLMSERVE_PRODUCTS=streamed)")
    state = "fail" if products == "streamed" else "warn"
    install = "Xcode's command line tools" if platform.system() == "Darwin" else "gcc or clang"
    remedy = f"install {install} for the fastest products on a CPU; the book runs without them"
    return Finding("compiler", state, reason, remedy)
