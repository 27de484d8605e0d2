"""What a step costs, computed from its chunks, and an engine that runs on such a clock."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from .pool import Pool, SlotPool
from .request import Chunk, StepResult

if TYPE_CHECKING:
    from .run import Step


CONTEXT = 120  # cached tokens of each sequence in a full decode step, as the chapters measure it
FAR = 2  # a step with more than so many times the work of any that was fitted is far outside


class Work(NamedTuple):
    """What there is to do in one step, in counts.

    tokens    computed through all layers
    rows      of the vocabulary projection: chunks whose next token is due
    cached    tokens of K and V read: sequences attend together, each as far as the longest of them
    pairs     a new token attending to a cached one (or to itself)
    prompts   chunks of more than one token: an attention call each
    """

    tokens: int
    rows: int
    cached: int
    pairs: int
    prompts: int


def count_work(chunks: list[tuple[int, int, bool]]) -> Work:
    """Count a step's work; chunks as (start, number of tokens, whether its next token is due)."""
    tokens = rows = pairs = prompts = longest = 0
    for start, n, due in chunks:
        end = start + n
        tokens += n
        rows += due
        pairs += n * (start + end + 1) // 2  # token i of the chunk attends to start + i + 1 tokens
        prompts += n > 1
        if end > longest:
            longest = end
    return Work(tokens, rows, len(chunks) * longest, pairs, prompts)


def step_work(step: Step) -> Work:
    """The work of a logged step."""
    return count_work([(c.start, c.num_tokens, c.token_id is not None) for c in step.chunks])


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: overhead + max(weights, tokens x per_token) + jumps + a price for all else in Work.

    overhead     a step's fixed cost
    weights      streaming all weights once, which hides the arithmetic of few tokens
    per_token    arithmetic of one token through all layers
    per_context  attention of one new token to one cached token
    per_row      one row of the vocabulary projection
    per_cached   reading K and V of one cached token
    per_prompt   the attention call of one prompt
    jumps        (tokens, seconds) pairs: seconds more from so many tokens on, where the library
                 that multiplies takes another routine
    fitted       the most of each count in the steps it was fitted to; None for a made-up model

    Only +, x and max, so the same log gives the same seconds to the last bit everywhere. With no
    negative price a step never gets cheaper by another token.
    """

    overhead: float = 0.0
    weights: float = 0.0
    per_token: float = 0.0
    per_context: float = 0.0
    per_row: float = 0.0
    per_cached: float = 0.0
    per_prompt: float = 0.0
    jumps: tuple[tuple[int, float], ...] = ()
    fitted: Work | None = None

    def __post_init__(self) -> None:
        prices = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("jumps", "fitted")}
        for name, price in [*prices.items(), *(("jumps", seconds) for _, seconds in self.jumps)]:
            if not 0 <= price < math.inf:
                raise ValueError(f"{name}={price!r}: a price is a number of seconds, 0 or more and finite")

    @property
    def knee(self) -> float:
        """Tokens of a step at which the arithmetic has caught up with streaming the weights."""
        return self.weights / self.per_token if self.per_token else math.inf

    def seconds(self, chunks: list[Chunk]) -> float:
        return self.price(
            count_work([(chunk.start, chunk.num_tokens, chunk.needs_token) for chunk in chunks])
        )

    def price(self, work: Work) -> float:
        seconds = self.overhead + max(self.weights, work.tokens * self.per_token)
        for tokens, more in self.jumps:
            if work.tokens >= tokens:
                seconds += more
        seconds += work.pairs * self.per_context + work.cached * self.per_cached
        return seconds + work.rows * self.per_row + work.prompts * self.per_prompt

    def full_decode_step(self, slots: int, context: int = CONTEXT) -> float:
        """Seconds of a decode step with every slot busy: the unit of load and of the limits."""
        return self.price(count_work([(context - 1, 1, True)] * slots))

    def beyond(self, work: Work) -> list[str]:
        """Which counts of a step lie far outside what the model was fitted to, in words."""
        if self.fitted is None:
            return []
        counts = zip(Work._fields, work, self.fitted, strict=True)
        return [
            f"{count} {name}, at most {most} fitted" for name, count, most in counts if count > FAR * most
        ]


class BeyondFitted(UserWarning):
    """A step with far more work than any that the prices were fitted to."""


@dataclass
class SimulatedEngine:
    """An engine without a model: seconds from a cost model, tokens from a fixed arithmetic rule.

    The rule looks at the last token and its position only, so tokens do not depend on the schedule.
    `noise` are factors (measured / computed seconds of the steps of some runs), those of steps without
    prompts and those of steps with: each step is multiplied by one of its kind, drawn with `seed`.
    Without them a step takes what the model says. `memory` makes the pool of a run, as in
    partial(BlockPool, 200, 16); None: as many slots of `max_model_len` as `max_num_seqs`. Each run warns
    once of a step that is far outside what the model was fitted to.
    """

    max_num_seqs: int
    max_model_len: int
    cost: CostModel = CostModel()
    vocab_size: int = 50257
    eos_token_id: int | None = None
    noise: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    seed: int = 0
    memory: Callable[[], Pool] | None = None
    _draws: random.Random = field(init=False, repr=False, compare=False)
    _warned: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        self._draws = random.Random(self.seed)

    def new_pool(self) -> Pool:
        self._draws, self._warned = random.Random(self.seed), False  # every run the same
        return self.memory() if self.memory else SlotPool(self.max_num_seqs, self.max_model_len)

    def step(self, chunks: list[Chunk]) -> StepResult:
        counted = [(chunk.start, chunk.num_tokens, chunk.needs_token) for chunk in chunks]
        tokens = [
            self._next_token(chunk) if due else None
            for chunk, (_, _, due) in zip(chunks, counted, strict=True)
        ]
        todo = count_work(counted)
        if not self._warned and self.cost.beyond(todo):
            self._warn(todo)
        return StepResult(tokens, self.cost.price(todo) * self._factor(todo))

    def _warn(self, todo: Work) -> None:
        self._warned = True
        warnings.warn(
            f"a step with {'; '.join(self.cost.beyond(todo))}: the cost model is guessing there. "
            "Fit it to runs with steps of that size",
            BeyondFitted,
            stacklevel=6,  # who called serve
        )

    def _factor(self, todo: Work) -> float:
        factors = self.noise[todo.prompts > 0]
        return factors[int(self._draws.random() * len(factors))] if factors else 1.0

    def _next_token(self, chunk: Chunk) -> int:
        position = chunk.start + chunk.num_tokens
        return (chunk.sequence.token_ids[position - 1] * 31 + position * 17 + 7) % self.vocab_size
