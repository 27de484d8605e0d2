"""Your own traffic: requests from a CSV file, and the same ones made short enough for a context window.

The file needs a header and three columns, in any order; further ones are ignored:

    arrival         seconds, 0 or more, from any moment that suits you
    prompt_tokens   a whole number, 1 or more
    output_tokens   a whole number, 1 or more

Only lengths and times are read. Token ids are drawn from a seed, as for a made-up workload: how long a
step takes does not depend on them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from .request import Request
from .workload import requests_of

COLUMNS = ("arrival", "prompt_tokens", "output_tokens")
MOST_SHOWN = 8  # bad rows that one error spells out
MOST_TOKENS = 10**6  # of one prompt or output: more is a wrong column, and would only fill the memory
EXAMPLE = Path(__file__).parent / "data" / "traffic" / "bursty.csv"  # made up: see the README beside it


def read_csv(path: str | Path, seed: int = 0) -> list[Request]:
    """The requests of a file, r0, r1 ... in the order of its rows; arrivals in seconds.

    OSError if the file cannot be read. ValueError if a column is missing, if there are no rows, or for
    all bad rows at once, each by its line with the value and what is wrong with it.
    """
    rows, bad = [], []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets write a mark in front
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            _require_columns(path, reader.fieldnames)
            for row in reader:
                wrong = _wrong(row)
                bad += [f"line {reader.line_num}: {'; '.join(wrong)}"] if wrong else []
                rows += [] if wrong else [_numbers(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: this is no CSV file in UTF-8 ({error}); save it as one") from None
    if bad:
        raise ValueError(_report(path, bad))
    if not rows:
        raise ValueError(f"{path}: there are no rows under the header; give at least one request")
    return requests_of(rows, seed)


def _require_columns(path: str | Path, found: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise ValueError(
            f"{path}: no column {', '.join(missing)} in the first line, which is "
            f"{', '.join(found)!r:.80}; write the header {','.join(COLUMNS)}"
        )


def _wrong(row: dict[str, str | None]) -> list[str]:
    """What is wrong with a row: each value that cannot be used, and why."""
    wrong = []
    for name in COLUMNS:
        text = row[name]
        if text is None or not text.strip():
            wrong.append(f"{name} is missing")
        elif name == "arrival" and not _is_time(text):
            wrong.append(f"arrival={text!r:.40} is not a number of seconds, 0 or more")
        elif name != "arrival" and not _is_length(text):
            wrong.append(f"{name}={text!r:.40} is not a whole number of tokens, 1 to {MOST_TOKENS}")
    return wrong


def _is_time(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


def _is_length(text: str) -> bool:
    digits = text.strip()
    short = digits.isascii() and digits.isdecimal() and len(digits) < 20
    return short and 1 <= int(digits) <= MOST_TOKENS


def _numbers(row: dict[str, str | None]) -> tuple[int, int, float]:
    arrival, prompt, output = (row[name] for name in COLUMNS)
    return int(prompt), int(output), float(arrival)


def _report(path: str | Path, bad: list[str]) -> str:
    rest = len(bad) - MOST_SHOWN
    more = [f"and {rest} more"] if rest > 0 else []
    lines = "\n".join(f"  {line}" for line in [*bad[:MOST_SHOWN], *more])
    return f"{path}: {len(bad)} bad {'row' if len(bad) == 1 else 'rows'}; correct or remove them:\n{lines}"


def scale_factor(requests: Iterable[Request], max_model_len: int) -> float:
    """What `scaled` multiplies lengths by: 1.0 if the longest request fits, less if it does not."""
    return min(1.0, max_model_len / _longest(requests))


def scaled(requests: Iterable[Request], max_model_len: int) -> list[Request]:
    """The requests with all lengths shrunk alike, so that the longest just fits `max_model_len` tokens.

    Prompts and outputs keep their proportions, down to one token each; `scale_factor` says the factor.
    Arrivals stay as they are, so shorter requests are a lighter load. Nothing is ever made longer.
    ValueError if the window has no room for one prompt token and one output token.
    """
    if max_model_len < 2:
        raise ValueError(
            f"max_model_len={max_model_len}: a request needs room for a prompt token and an output token; "
            "give 2 or more"
        )
    requests = list(requests)
    longest = _longest(requests)
    if longest <= max_model_len:
        return requests
    return [_shrunk(request, max_model_len, longest) for request in requests]


def _longest(requests: Iterable[Request]) -> int:
    return max((len(request.prompt_token_ids) + request.max_tokens for request in requests), default=1)


def _shrunk(request: Request, room: int, longest: int) -> Request:
    # In whole numbers, rounded down: a float could round a sum to one token beyond the window.
    prompt = max(1, len(request.prompt_token_ids) * room // longest)
    output = min(max(1, request.max_tokens * room // longest), room - prompt)
    expected = request.expected_tokens
    return replace(
        request,
        prompt_token_ids=request.prompt_token_ids[:prompt],
        max_tokens=output,
        expected_tokens=None if expected is None else max(1, expected * room // longest),
    )
