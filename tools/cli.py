"""`python -m tools book | test | chapter N | html | record [N] | cost | serve | address`: what make calls."""

from __future__ import annotations

import argparse
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

from llmserve.settings import Settings
from tools import cost as costs
from tools import record as recording
from tools import repository
from tools.execute import Outcome, execute, require
from tools.keys import last_or_given, read_settings, save_last
from tools.lock import exclusive
from tools.progress import clock
from tools.project import Chapter, Project, ToolError
from tools.render import render
from tools.serve import serve

ROOT = Path(__file__).resolve().parents[1]
# tests/browser looks at the built book, which may be of yesterday here: the workflow does it last.
UNIT_TESTS = ["pytest", "--ignore=tests/browser"]
CHECKS = (["ruff", "check", "."], ["ruff", "format", "--check", "."], UNIT_TESTS)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    options = _parser().parse_args(arguments)
    project = Project(root)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a stopped run ends its kernel too
    try:
        if options.command == "serve":
            serve(project)
        else:
            with exclusive(project.build, f"python -m tools {options.command}"):
                COMMANDS[options.command](project, options)
    except ToolError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="run every chapter and render the book")
    commands.add_parser("test", help="lint, unit tests, then every chapter")
    one = commands.add_parser("chapter", help="run one chapter and render the book")
    one.add_argument("number", type=int, help="as in the file's name: 1 for 01-static")
    html = commands.add_parser("html", help="render what ran last")
    html.add_argument("--draft", action="store_true", help="also what is stale or not run, under a banner")
    record = commands.add_parser("record", help="run chapters at full scale and write down what came out")
    record.add_argument("numbers", nargs="?", default="", help="1,2 for some chapters only; all without")
    commands.add_parser("cost", help="measure the step times that the package simulates with (some minutes)")
    commands.add_parser("serve", help="serve the built book on localhost")
    commands.add_parser("address", help="write the repository's address into the README and the chapters")
    return parser


def book(project: Project, options: argparse.Namespace) -> None:
    settings = read_settings()
    require(run_chapters(project, project.chapters(), settings))
    render(project, settings)


def test(project: Project, options: argparse.Namespace) -> None:
    settings = read_settings()
    failed = [" ".join(check) for check in CHECKS if not _passes(project, check)]
    if failed:
        raise ToolError(f"Failed: {'; '.join(failed)} (the chapters were not run)")
    require(run_chapters(project, project.chapters(), settings, keep_going=True))


def chapter(project: Project, options: argparse.Namespace) -> None:
    settings = read_settings()
    require(run_chapters(project, [project.chapter(options.number)], settings))
    render(project, settings, draft=True)


def html(project: Project, options: argparse.Namespace) -> None:
    render(project, last_or_given(project), options.draft)


def record(project: Project, options: argparse.Namespace) -> None:
    settings = recording.at_full_scale(read_settings())
    chapters = project.chosen(options.numbers) if options.numbers else project.chapters()
    print(f"At full scale: {recording.expected(project, chapters)}. Leave the machine alone.", flush=True)
    outcomes = run_chapters(project, chapters, settings, limit=recording.LIMIT_SECONDS)
    require(outcomes)
    recording.write(project, settings, outcomes)
    print(f"Written to {project.relative(recording.folder(project))}; look at it with git diff.", flush=True)


def cost(project: Project, options: argparse.Namespace) -> None:
    costs.measure(project, read_settings())


def address(project: Project, options: argparse.Namespace) -> None:
    slug = repository.detect(project.root)
    if not slug:
        raise ToolError(
            "No repository on GitHub: `git remote add origin https://github.com/OWNER/NAME`, then try again."
        )
    changed = repository.write(project.root, slug)
    print(f"https://github.com/{slug}: written into {len(changed)} files; look at it with git diff.")


COMMANDS = {"book": book, "test": test, "chapter": chapter, "html": html, "record": record, "cost": cost}
COMMANDS |= {"address": address}


def run_chapters(
    project: Project,
    chapters: list[Chapter],
    settings: Settings,
    keep_going: bool = False,
    limit: float = math.inf,
) -> list[Outcome]:
    """Run the chapters one after the other; the first that fails ends it, unless keep_going.

    ToolError if `limit` seconds have passed before the last one is started.
    """
    started = time.monotonic()
    save_last(project, settings)
    print(
        f"{len(chapters)} chapter(s): scale {settings.scale}, weights {settings.weights}, device "
        f"{settings.device}, dtype {settings.dtype}, "
        f"products {settings.products}, threads {settings.threads}",
        flush=True,
    )
    outcomes: list[Outcome] = []
    for number, one in enumerate(chapters, start=1):
        if time.monotonic() - started > limit:
            raise ToolError(
                f"{clock(limit)} have passed before {one.name}: this machine is too slow or too busy. "
                "What ran is kept; the same command goes on from there."
            )
        outcomes.append(execute(project, one, settings, f"[{number}/{len(chapters)}] {one.name}"))
        if outcomes[-1].failure and not keep_going:
            break
    _print_table(outcomes, time.monotonic() - started)
    return outcomes


def _print_table(outcomes: list[Outcome], seconds: float) -> None:
    width = max([len(outcome.chapter.name) for outcome in outcomes], default=7)
    print(f"\n{'chapter':{width}}  {'':10}  seconds  peak MB")
    for outcome in outcomes:
        state = "FAILED" if outcome.failure else "ran" if outcome.ran else "up to date"
        memory = outcome.peak_mb or "-"
        print(f"{outcome.chapter.name:{width}}  {state:10}  {outcome.seconds:7.1f}  {memory:>7}")
    print(f"total {clock(seconds)}\n", flush=True)


def _passes(project: Project, check: list[str]) -> bool:
    print(f"$ {' '.join(check)}", flush=True)
    return subprocess.run([sys.executable, "-m", *check], cwd=project.root).returncode == 0
