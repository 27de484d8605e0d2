"""What a user asked for, where it stands, and what one step computes of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
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
        self.token_ids = [operator.index(token) for token in self.request.prompt_token_ids]
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


def check_request(request: Request, vocab_size: int, max_model_len: int) -> None:
    """Raise a ValueError that names the request, the limit and the remedy if it can never run."""
    who = f"request {request.id!r}"
    prompt, max_tokens = request.prompt_token_ids, request.max_tokens
    if isinstance(prompt, str) or not hasattr(prompt, "__len__") or not len(prompt):
        raise ValueError(f"{who}: the prompt must be a list of at least one token id, not {prompt!r:.40}")
    for token in prompt:
        if not _is_int(token) or not 0 <= token < vocab_size:
            raise ValueError(f"{who}: prompt token {token!r} is not a token id in 0...{vocab_size - 1}")
    if not _is_int(max_tokens) or max_tokens < 1:
        raise ValueError(f"{who}: max_tokens={max_tokens!r}; ask for a whole number of tokens, 1 or more")
    for token in request.stop_token_ids:
        if not _is_int(token):
            raise ValueError(f"{who}: stop token {token!r} is not a token id; give whole numbers")
    if not isinstance(request.arrival_time, int | float) or not 0 <= request.arrival_time < math.inf:
        raise ValueError(f"{who}: arrival_time={request.arrival_time!r}; give seconds from 0 on, finite")
    # The last output token needs no K and V, but it counts: the field counts it too.
    if len(prompt) + max_tokens > max_model_len:
        raise ValueError(
            f"{who}: {len(prompt)} prompt tokens + max_tokens={max_tokens} exceed max_model_len="
            f"{max_model_len}; shorten the prompt, ask for fewer tokens or raise max_model_len"
        )


def _is_int(value: object) -> bool:
    try:
        operator.index(value)  # NumPy's integers too
    except TypeError:
        return False
    return not isinstance(value, bool)
