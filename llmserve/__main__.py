"""Command line: python -m llmserve download."""

from __future__ import annotations

import argparse
import sys

from .models.load import download


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m llmserve")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("download", help="fetch pretrained GPT-2 into the local Hugging Face cache")
    parser.parse_args()
    try:
        print(f"GPT-2 is in {download()}")
    except RuntimeError as error:
        print(f"download failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
