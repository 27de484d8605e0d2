"""Command line: python -m llmserve doctor | race | download."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: fine; 1: it failed; 2: bad arguments."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except commands.BadArgument as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m llmserve", description=__doc__)
    adder = parser.add_subparsers(dest="command", required=True)
    told = "look at this machine: threads, quota, noise, memory, versions, weights, compiler"
    adder.add_parser("doctor", help=told).set_defaults(run=commands.doctor)
    _add_race(adder.add_parser("race", help="serve the same requests with several policies, as a table"))
    told = "fetch pretrained GPT-2 into the local Hugging Face cache"
    adder.add_parser("download", help=told).set_defaults(run=commands.download)
    return parser


def _add_race(race: argparse.ArgumentParser) -> None:
    race.set_defaults(run=commands.race)
    forms = "; ".join(commands.FORMS.values())
    race.add_argument(
        "--policies", metavar="LIST", default=commands.ALL, help=f"with commas between them: {forms}"
    )
    which = race.add_mutually_exclusive_group()
    which.add_argument("--workload", metavar="NAME", help=commands.NAMES)
    which.add_argument(
        "--csv", metavar="FILE", help="your own: a header and columns arrival, prompt_tokens, output_tokens"
    )
    race.add_argument("--requests", metavar="N", help="only so many of them")
    race.add_argument(
        "--engine",
        metavar="KIND",
        default="simulated",
        help="simulated (default), or real: GPT-2 here",
    )
    race.add_argument(
        "--max-model-len",
        metavar="TOKENS",
        help="the context window; a file is scaled to it",
    )
    race.add_argument("--trace", metavar="FOLDER", help="write each run as a trace, for ui.perfetto.dev")


if __name__ == "__main__":
    sys.exit(main())
