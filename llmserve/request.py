"""What a user asked for, where it stands, and what one step computes of it."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Request:
    """What a user asked for. Checked when it is submitted, not when it is written down.

    arrival_time       seconds after the start of the run
    prompt_token_ids   at least one token id
    max_tokens         output tokens at most, the stop token included
    ignore_eos         go on past the model's end-of-sequence token (lengths come from the workload)
    priority           for a policy whose `key` reads it; smaller is sooner
    stop_token_ids     further ids that end the output; the one that did is its last token
    expected_tokens    a guess of the output length, which only a length oracle may read
    """

    id: str
    prompt_token_ids: Seq[int]
    max_tokens: int
    arrival_time: float = 0.0
    ignore_eos: bool = False
    priority: int = 0
    stop_token_ids: tuple[int, ...] = ()
    expected_tokens: int | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """Where a request stands: its tokens so far, and how many of them have K and V in the cache.

    Prefill, chunk and decode are one thing: `num_computed_tokens` catching up with `len(token_ids)`.
    """

    request: Request
    order: int = 0
    num_computed_tokens: int = 0
    finish_reason: str | None = None
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def arrival_time(self) -> float:
        return self.request.arrival_time

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens without K and V yet: the whole prompt at first, 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Exactly one token behind, and that one is an output token. Anything else is prefill."""
        behind = len(self.token_ids) - self.num_computed_tokens
        return behind == 1 and len(self.token_ids) > self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None


class Chunk(NamedTuple):
    """What one sequence computes in one step: tokens `start` to `start + num_tokens - 1`.

    place   where its K and V live, from the memory pool (a slot number)
    """

    sequence: Sequence
    start: int
    num_tokens: int
    place: Any

    @property
    def needs_token(self) -> bool:
        """Whether a next token is due: the chunk reaches the end of what is known.

        A zombie row (the last computed position of a finished sequence, again) counts too:
        its next token is computed and thrown away.
        """
        return self.sequence.is_finished or self.start + self.num_tokens == len(self.sequence.token_ids)


class StepResult(NamedTuple):
    """What an engine gives back for a list of chunks.

    token_ids   parallel to the chunks; None where no token was due
    seconds     how long the step took (measured or computed)
    cpu_share   process CPU time over threads x wall time; None where nothing was measured
    """

    token_ids: list[int | None]
    seconds: float
    cpu_share: float | None = None


def checked(request: Request, vocab_size: int, max_model_len: int, longest: int) -> Request:
    """The same request in Python's own numbers (NumPy's may be given, but they overflow).

    A ValueError that names the request, the limit and the remedy if it can never run.
    """

    def need(fine: object, otherwise: str) -> None:
        if not fine:
            raise ValueError(f"request {request.id!r:.60}: {otherwise}")

    prompt, stops = _whole_numbers(request.prompt_token_ids), _whole_numbers(request.stop_token_ids)
    max_tokens, arrival_time = whole(request.max_tokens), _real(request.arrival_time)
    priority, expected_tokens = _real(request.priority), _real(request.expected_tokens)
    need(isinstance(request.id, str), "the id must be a string")
    need(prompt, f"the prompt must be a list of at least one token id, not {request.prompt_token_ids!r:.40}")
    for given, token in zip(request.prompt_token_ids, prompt, strict=True):
        fine = token is not None and 0 <= token < vocab_size
        need(fine, f"prompt token {given!r:.40} is not a token id in 0...{vocab_size - 1}")
    need(
        max_tokens is not None and max_tokens >= 1,
        f"max_tokens={request.max_tokens!r:.40}; ask for a whole number of tokens, 1 or more",
    )
    need(
        stops is not None and None not in stops,
        f"stop_token_ids={request.stop_token_ids!r:.40}; give whole numbers, as in (13, 198)",
    )
    need(
        arrival_time is not None and arrival_time >= 0,
        f"arrival_time={request.arrival_time!r:.40}; give seconds from 0 on, finite",
    )
    need(priority is not None, f"priority={request.priority!r:.40}; give a number, smaller is sooner")
    need(
        expected_tokens is not None or request.expected_tokens is None,
        f"expected_tokens={request.expected_tokens!r:.40}; give a number of tokens, or None",
    )
    # The last output token needs no K and V, but it counts: the field counts it too.
    need(
        len(prompt) + max_tokens <= max_model_len,
        f"{len(prompt)} prompt tokens + max_tokens={max_tokens} exceed max_model_len={max_model_len}; "
        "shorten the prompt, ask for fewer tokens or raise max_model_len",
    )
    need(
        len(prompt) + max_tokens <= longest,
        f"{len(prompt)} prompt tokens + max_tokens={max_tokens} exceed the {longest} tokens of a request for "
        "which all cache memory is enough; shorten the prompt, ask for fewer tokens or give the pool more",
    )
    return replace(
        request,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        arrival_time=float(arrival_time),
        priority=priority,
        stop_token_ids=stops,
        expected_tokens=expected_tokens,
    )


def whole(value: object) -> int | None:
    """A whole number as Python's own, NumPy's and torch's too; None for anything else, a bool too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _whole_numbers(values: object) -> tuple[int | None, ...] | None:
    """`whole` of each in a list, an array or a tuple; None for what is none of these."""
    if isinstance(values, str | bytes | dict | set | frozenset) or not hasattr(values, "__len__"):
        return None
    return tuple(whole(value) for value in values)


def _real(value: object) -> int | float | None:
    """A finite number as Python's own; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of some hundred digits
        return None
    if not math.isfinite(number):
        return None
    return int(value) if isinstance(value, numbers.Integral) else number
