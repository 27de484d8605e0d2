"""What `python -m llmserve` does: doctor, race, download. A bad argument is told in one sentence."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import race as racing
from . import traffic
from .doctor import examine
from .models.load import download as fetch
from .policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Policy, ShortestRemaining, Static
from .request import Request
from .settings import Settings
from .trace import write_trace
from .workload import HEADLINE, WORKLOADS, Workload

if TYPE_CHECKING:
    from .engine import Engine

NAMES = f"one of {', '.join(WORKLOADS)}"
ALL = "static:8,dynamic:8:0.3,bucketed:8,continuous:8,mixed:8,chunked:8:64,shortest-remaining:8:32"
WINDOW = 1024  # GPT-2's
ENGINES = ("simulated", "real")


class BadArgument(Exception):
    """Names the argument, the limit and the remedy."""


class Form(NamedTuple):
    """A policy's class and how each number after its name is read."""

    policy: Callable[..., Policy]
    numbers: tuple[Callable[[str], int | float], ...]


POLICIES = {
    "static": Form(Static, (int,)),
    "dynamic": Form(Dynamic, (int, float)),
    "bucketed": Form(Bucketed, (int,)),
    "continuous": Form(Continuous, (int,)),
    "mixed": Form(Mixed, (int,)),
    "chunked": Form(Chunked, (int, int)),
    "shortest-remaining": Form(ShortestRemaining, (int, int)),
}
EXTRA = {
    "dynamic": ":SECONDS_TO_WAIT",
    "chunked": ":TOKENS_A_STEP",
    "shortest-remaining": ":PROMPT_TOKENS_LIKE_A_STEP",
}
FORMS = {name: f"{name}:SLOTS{EXTRA.get(name, '')}" for name in POLICIES}


def doctor(options: argparse.Namespace) -> int:
    """Print a line for each thing looked at; 1 if something makes the book impossible."""
    failed = 0
    for finding in examine():
        print(finding, flush=True)
        failed += finding.state == "fail"
    return 1 if failed else 0


def download(options: argparse.Namespace) -> int:
    try:
        print(f"GPT-2 is in {fetch()}")
    except RuntimeError as error:
        print(f"download failed: {error}", file=sys.stderr)
        return 1
    return 0


def race(options: argparse.Namespace) -> int:
    """Print the table; 1 if a policy broke."""
    if options.engine not in ENGINES:
        raise BadArgument(f"--engine {options.engine}: choose one of {', '.join(ENGINES)}")
    policies = read_policies(options.policies)
    folder = _folder(options.trace)
    requests = _requests(options)
    result = racing.race(policies, requests, _engine(options, policies, requests))
    print(result)
    if folder:
        for name, run in result.runs.items():
            write_trace(run, folder / f"{file_name(name)}.json")
        print(f"{len(result.runs)} traces in {folder}: open them at ui.perfetto.dev")
    return 1 if result.errors else 0


# -- arguments -------------------------------------------------------------------------------------


def read_policies(text: str) -> list[Policy]:
    """static:8,chunked:8:64 -> the policies; BadArgument for what is none."""
    return [_policy(part.strip()) for part in text.split(",")]


def _policy(text: str) -> Policy:
    name, *given = text.split(":")
    if name not in POLICIES:
        raise BadArgument(f"--policies: no policy {text!r}; write one of {', '.join(FORMS.values())}")
    policy, numbers = POLICIES[name]
    try:
        values = [read(value) for read, value in zip(numbers, given, strict=True)]
    except ValueError:
        raise BadArgument(f"--policies: {text!r} must look like {FORMS[name]}, in numbers") from None
    try:
        return policy(*values)
    except ValueError as error:
        raise BadArgument(f"--policies: {text}: {error}") from None


def _whole(name: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise BadArgument(f"{name} {text}: give a whole number, {least} or more")
    return int(text)


def _window(options: argparse.Namespace) -> int | None:
    return _whole("--max-model-len", options.max_model_len, least=2)


def _requests(options: argparse.Namespace) -> list[Request] | Workload:
    """The workload with what was changed, or the file's requests."""
    count, window = _whole("--requests", options.requests, least=1), _window(options)
    if options.csv:
        return _from_file(options.csv, count, window or (WINDOW if options.engine == "real" else None))
    name = options.workload or HEADLINE.name
    if name not in WORKLOADS:
        raise BadArgument(f"--workload {name}: choose {NAMES}, or --csv with a file of yours")
    workload = WORKLOADS[name]
    return workload.with_(
        num_requests=count or workload.num_requests, max_model_len=window or workload.max_model_len
    )


def _from_file(path: str, count: int | None, window: int | None) -> list[Request]:
    """Its first requests, scaled to the window if there is one; says the factor."""
    try:
        requests = traffic.read_csv(path)[:count]
    except OSError as error:
        raise BadArgument(f"--csv {path}: {error.strerror}; give a file that can be read") from None
    except ValueError as error:
        raise BadArgument(f"--csv {error}") from None
    if window is None:
        return requests
    factor = traffic.scale_factor(requests, window)
    if factor < 1:
        print(f"All lengths × {factor:.3f}, so that the longest request fits {window} tokens.")
    return traffic.scaled(requests, window)


def _folder(text: str | None) -> Path | None:
    """The folder for traces, made before anything runs for minutes."""
    if text is None:
        return None
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"--trace {text}: {error.strerror}; give a folder that can be made") from None
    return Path(text)


def file_name(label: str) -> str:
    """Chunked(8, 64) -> chunked-8-64"""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"


# -- engines ---------------------------------------------------------------------------------------


def _engine(
    options: argparse.Namespace, policies: Sequence[Policy], requests: list[Request] | Workload
) -> Engine | None:
    """The real engine; None for the race's own simulated one."""
    if options.engine == "simulated":
        return None
    room = requests.max_model_len if isinstance(requests, Workload) else _window(options) or WINDOW
    if room > WINDOW:
        raise BadArgument(f"--max-model-len {room}: GPT-2 knows {WINDOW} positions; give {WINDOW} or less")
    try:
        settings = Settings.from_env()
    except ValueError as error:
        raise BadArgument(str(error)) from None
    print("Loading GPT-2, then each policy in turn, for minutes. Leave the machine alone.", flush=True)
    return _real_engine(settings, max(policy.max_num_seqs for policy in policies), room)


def _real_engine(settings: Settings, slots: int, room: int) -> Engine:
    import torch

    from .lab import Lab

    torch.set_num_threads(settings.threads)
    try:
        lab = Lab(settings)
    except ValueError as error:  # pretrained weights that are not there
        raise BadArgument(str(error)) from None
    print(lab.sentence.replace("**", ""), flush=True)
    return lab.engine(slots, room)
