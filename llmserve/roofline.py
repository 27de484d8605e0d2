"""What a decode step costs at the very least: bytes over bandwidth, or operations over the matrix rate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from .costmodel import step_work

if TYPE_CHECKING:
    from .models.gpt2 import Config
    from .run import Step


@dataclass(frozen=True)
class Peak:
    """What a machine can do at best: bytes/s read from memory, and FLOP/s of matrix products."""

    bandwidth: float
    flops: float

    @property
    def ridge(self) -> float:
        """FLOP per byte at which reading and computing take the same time."""
        return self.flops / self.bandwidth

    def ridge_rows(self, bytes_per_weight: float = 4) -> float:
        """Rows of a step at which the ridge is reached: each row does 2 FLOP with each weight."""
        return self.ridge * bytes_per_weight / 2


@dataclass(frozen=True)
class StepWork:
    """Bytes read and operations done by one step, from the shape of the model alone.

    body_weights          weights of all layers, which every token is multiplied by
    vocabulary_weights    weights of the vocabulary projection, only for rows whose next token is wanted
    kv_bytes_per_token    K and V of one cached token, all layers
    attention_flops       FLOP of one new token with one cached token, all layers (4 x layers x hidden)
    """

    body_weights: float
    vocabulary_weights: float
    kv_bytes_per_token: float
    attention_flops: float
    bytes_per_weight: float = 4

    @classmethod
    def of(cls, config: Config, bytes_per_weight: int = 4) -> StepWork:
        """For GPT-2: 12 h^2 weights a layer (4 in attention, 8 in the MLP), and vocabulary x h."""
        return cls(
            body_weights=12 * config.num_layers * config.hidden**2,
            vocabulary_weights=config.vocab_size * config.hidden,
            kv_bytes_per_token=config.kv_bytes_per_token(bytes_per_weight),
            attention_flops=4 * config.num_layers * config.hidden,
            bytes_per_weight=bytes_per_weight,
        )

    @property
    def num_weights(self) -> float:
        return self.body_weights + self.vocabulary_weights

    @property
    def weight_bytes(self) -> float:
        return self.num_weights * self.bytes_per_weight

    def bytes(self, batch: int, context: int) -> float:
        """Read by one decode step: every weight once, and each sequence's K and V."""
        return self.weight_bytes + batch * context * self.kv_bytes_per_token

    def flops(self, batch: int, context: int) -> float:
        """Done by one decode step: 2 per weight and row, and attention over the context."""
        return batch * (2 * self.num_weights + context * self.attention_flops)

    def prefill_flops(self, prompts: int, length: int) -> float:
        """Done by prefilling whole prompts: token i attends to i tokens; one vocabulary row a prompt."""
        pairs = prompts * length * (length + 1) / 2
        body = 2 * self.body_weights * prompts * length
        return body + 2 * self.vocabulary_weights * prompts + self.attention_flops * pairs

    def utilisation(self, peak: Peak, steps: Iterable[Step]) -> tuple[float, float]:
        """MBU and MFU of logged steps together: what they had to read and to compute, over their seconds."""
        seconds = read = done = 0.0
        for step in steps:
            todo = step_work(step)
            weights = self.body_weights + (self.vocabulary_weights if todo.rows else 0)
            cached = sum(c.start + c.num_tokens for c in step.chunks)
            read += weights * self.bytes_per_weight + cached * self.kv_bytes_per_token
            done += 2 * (self.body_weights * todo.tokens + self.vocabulary_weights * todo.rows)
            done += self.attention_flops * todo.pairs
            seconds += step.seconds
        return read / seconds / peak.bandwidth, done / seconds / peak.flops

    def crossing(self, peak: Peak, context: int) -> float:
        """Batch size at which a decode step's arithmetic takes as long as its reading; inf if never."""
        compute = self.flops(1, context) / peak.flops
        read = context * self.kv_bytes_per_token / peak.bandwidth
        return self.weight_bytes / peak.bandwidth / (compute - read) if compute > read else math.inf

    def floor(self, peak: Peak, batch: int, context: int) -> float:
        """No step can be faster: seconds to read, or seconds to compute, whichever is longer."""
        return max(self.bytes(batch, context) / peak.bandwidth, self.flops(batch, context) / peak.flops)

    def mbu(self, peak: Peak, batch: int, context: int, seconds: float) -> float:
        """Memory bandwidth utilisation: bytes that had to be read, per second, over the measured peak."""
        return self.bytes(batch, context) / seconds / peak.bandwidth

    def mfu(self, peak: Peak, batch: int, context: int, seconds: float) -> float:
        """Model FLOP utilisation: operations that had to be done, per second, over the measured peak."""
        return self.flops(batch, context) / seconds / peak.flops


@dataclass(frozen=True)
class GPU:
    """Datasheet values: GB, GB/s and dense 16-bit tensor TFLOP/s."""

    name: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: float

    @property
    def peak(self) -> Peak:
        return Peak(self.bandwidth_gb_s * 1e9, self.tflops * 1e12)


@dataclass(frozen=True)
class LLM:
    """A published model: billions of weights, and the shape of its KV cache."""

    name: str
    weights_billion: float
    layers: int
    kv_heads: int
    head_dim: int

    def kv_bytes_per_token(self) -> int:
        """K and V of one token through all layers, 16-bit."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def gpus() -> dict[str, GPU]:
    return {row[0]: GPU(row[0], *map(float, row[1:])) for row in _data("gpus.csv")}


def llms() -> dict[str, LLM]:
    return {row[0]: LLM(row[0], float(row[1]), *map(int, row[2:])) for row in _data("models.csv")}


def sequences_that_fit(gpu: GPU, model: LLM, context: int, usable: float = 0.9) -> int:
    """How many 16-bit KV caches of `context` tokens fit beside 16-bit weights in the usable GPU memory."""
    free = usable * gpu.memory_gb * 1e9 - model.weights_billion * 1e9 * 2
    return max(0, int(free // (context * model.kv_bytes_per_token())))


def _data(name: str) -> list[list[str]]:
    text = resources.files("llmserve").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.reader(text.splitlines()))[1:]
