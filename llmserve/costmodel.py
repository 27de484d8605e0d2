"""What a step costs, computed from its chunks, and an engine that runs on such a clock."""

from __future__ import annotations

from dataclasses import dataclass

from .pool import SlotPool
from .request import Chunk, StepResult


@dataclass(frozen=True)
class CostModel:
    """Seconds = overhead + max(weights, tokens x per_token) + context x per_context + rows x per_row.

    overhead     a step's fixed cost
    weights      streaming all weights once, which hides the arithmetic of few tokens
    per_token    arithmetic of one token through all layers
    per_context  attention of one new token to one cached token
    per_row      one row of the vocabulary projection

    Only +, x and max, so the same log gives the same seconds to the last bit everywhere.
    """

    overhead: float = 0.0
    weights: float = 0.0
    per_token: float = 0.0
    per_context: float = 0.0
    per_row: float = 0.0

    def seconds(self, chunks: list[Chunk]) -> float:
        tokens = rows = context = 0
        for chunk in chunks:
            tokens += chunk.num_tokens
            rows += chunk.needs_token
            # token i of the chunk attends to start + i + 1 cached tokens
            context += chunk.num_tokens * chunk.start + chunk.num_tokens * (chunk.num_tokens + 1) // 2
        arithmetic = max(self.weights, tokens * self.per_token)
        return self.overhead + arithmetic + context * self.per_context + rows * self.per_row


@dataclass
class SimulatedEngine:
    """An engine without a model: seconds from a cost model, tokens from a fixed arithmetic rule.

    The rule looks at the last token and its position only, so tokens do not depend on the schedule.
    """

    max_num_seqs: int
    max_model_len: int
    cost: CostModel = CostModel()
    vocab_size: int = 50257
    eos_token_id: int | None = None

    def new_pool(self) -> SlotPool:
        return SlotPool(self.max_num_seqs, self.max_model_len)

    def step(self, chunks: list[Chunk]) -> StepResult:
        tokens = [self._next_token(chunk) if chunk.needs_token else None for chunk in chunks]
        return StepResult(tokens, self.cost.seconds(chunks))

    def _next_token(self, chunk: Chunk) -> int:
        position = chunk.start + chunk.num_tokens
        return (chunk.sequence.token_ids[position - 1] * 31 + position * 17 + 7) % self.vocab_size
