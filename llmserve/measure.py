"""Measure fairly on a noisy machine: decode steps of a made-up batch, and runs in interleaved rounds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import torch

from .engine import Engine
from .memory import give_back
from .metrics import SLO, Summary, summarise
from .models.gpt2 import GPT2
from .readings import Readings
from .request import Chunk, Request, Sequence
from .run import Run

K = TypeVar("K", bound=Hashable)
DISTURBED = 0.9  # a CPU share below this part of the usual one means that another process took its time
MOST_REDONE = 2  # times that one round may be taken again


def decode_chunks(batch: int, context: int) -> list[Chunk]:
    """One decode step of `batch` sequences, each with `context` tokens in the cache when it is done."""
    return ragged_decode_chunks([context] * batch)


def ragged_decode_chunks(contexts: Iterable[int]) -> list[Chunk]:
    """The same with a context of its own for each sequence.

    What the cache holds does not matter for the time a step takes; which tokens, neither.
    """
    chunks = []
    for place, context in enumerate(contexts):
        sequence = Sequence(Request(f"s{place}", [(7 * place + i) % 1000 for i in range(context)], 1))
        sequence.num_computed_tokens = context - 1
        chunks.append(Chunk(sequence, context - 1, 1, place))
    return chunks


def placed(engine: Engine, chunks: Iterable[Chunk]) -> list[Chunk]:
    """The same chunks where a new pool of this engine puts them; ValueError if it has no room for all."""
    pool, chunks = engine.new_pool(), list(chunks)
    for chunk in chunks:
        if pool.admit(chunk.sequence) is None:
            raise ValueError(
                f"{len(chunks)} sequences, the first of {len(chunk.sequence.token_ids)} tokens, do not fit "
                f"{pool.total_tokens} tokens of cache memory; give the engine a smaller max_num_seqs, or more"
            )
    return [chunk._replace(place=pool.place(chunk.sequence)) for chunk in chunks]


def in_turn(calls: Mapping[K, Callable[[], float]], repeats: int) -> dict[K, list[float]]:
    """Call everything in turn and keep the seconds that each call returns; the first is a warm-up."""
    seconds: dict[K, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            taken = call()
            if turn:
                seconds[name].append(taken)
    give_back()
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def decode_steps(engine: Engine, batches: list[int], context: int, repeats: int) -> dict[int, list[float]]:
    """Seconds of a decode step at each batch size, interleaved."""
    work = {batch: decode_chunks(batch, context) for batch in batches}
    return in_turn({n: lambda n=n: engine.step(work[n]).seconds for n in batches}, repeats)


def prefill_chunks(lengths: Iterable[int]) -> list[Chunk]:
    """One step that prefills whole prompts of these lengths."""
    requests = [Request(f"p{place}", [place + 1] * length, 1) for place, length in enumerate(lengths)]
    return [
        Chunk(Sequence(request), 0, len(request.prompt_token_ids), place)
        for place, request in enumerate(requests)
    ]


def thirds(values: list[float]) -> list[float]:
    """Interleaved repeats as three rounds: the median of every third value."""
    return [median(values[i::3]) for i in range(3)]


def product_seconds(
    rows: list[int], forms: list[type], model: GPT2, repeats: int
) -> dict[str, dict[int, list[float]]]:
    """Seconds of GPT-2's layer products in a step of so many rows, by form and rows, interleaved.

    Two of the layers are timed, and counted for all: too large for most caches, small in memory.
    """
    h, like = model.config.hidden, {"dtype": model.dtype, "device": model.device}
    shapes = [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h)] * 2
    weights = [torch.randn(shape, **like) for shape in shapes]
    products = {form.__name__: [form(weight) for weight in weights] for form in forms}
    inputs = {n: [torch.randn(n, inner, **like) for _, inner in shapes] for n in rows}

    def all_layers(name: str, n: int) -> float:
        pairs = zip(products[name], inputs[n], strict=True)
        return timed(lambda: [product(x) for product, x in pairs]) * model.config.num_layers / 2

    pairs = itertools.product(products, rows)
    with torch.inference_mode():
        seconds = in_turn({pair: lambda pair=pair: all_layers(*pair) for pair in pairs}, repeats)
    return {name: {n: seconds[name, n] for n in rows} for name in products}


def full_batch_decode_step(engine: Engine, context: int, repeats: int = 40) -> float:
    """Median seconds of a decode step with every slot busy: what offered load and limits are scaled by.

    So much hangs on it that it is taken again, at most twice, while another process takes the CPU's
    time; the fastest of the medians counts.
    """
    chunks, medians = placed(engine, decode_chunks(engine.max_num_seqs, context)), []
    for _ in range(MOST_REDONE + 1):
        steps = [engine.step(chunks) for _ in range(repeats + 1)][1:]
        medians.append(median(step.seconds for step in steps))
        shares = [step.cpu_share for step in steps if step.cpu_share is not None]
        if not shares or median(shares) >= DISTURBED:
            break
    return min(medians)


@dataclass
class Rounds:
    """Runs of several contestants, taken in turn; `redone` counts the rounds taken again."""

    runs: dict[Hashable, list[Run]] = field(default_factory=dict)
    redone: int = 0
    slo: SLO | None = None
    _summaries: dict[Hashable, list[Summary]] = field(default_factory=dict, repr=False)

    def note(self, requests: int) -> str:
        """How the readings were taken, for the page."""
        taken = len(next(iter(self.runs.values())))
        again = "none was" if not self.redone else f"{self.redone} had to be"
        return (
            f"*{requests} requests a run; {taken} {'round' if taken == 1 else 'rounds'}; "
            f"{again} taken again because another process disturbed it.*"
        )

    def first(self, name: Hashable) -> Run:
        return self.runs[name][0]

    def summaries(self, name: Hashable) -> list[Summary]:
        """One a round; worked out when first asked for, since a page asks often."""
        if name not in self._summaries:
            self._summaries[name] = [summarise(run, self.slo) for run in self.runs[name]]
        return self._summaries[name]

    def values(self, name: Hashable, metric: str) -> list[float]:
        """One reading a round of a metric of Summary."""
        return [getattr(summary, metric) for summary in self.summaries(name)]

    def readings(self, metrics: Iterable[str], names: Mapping[Hashable, str] | None = None) -> Readings:
        """metric -> contestant -> a reading a round, as `readings.keep` takes them."""
        names = names or {name: str(name) for name in self.runs}
        return {metric: {names[n]: self.values(n, metric) for n in names} for metric in metrics}

    def median(self, name: Hashable, metric: str) -> float:
        return median(self.values(name, metric))


def interleave(
    contestants: Mapping[Hashable, Callable[[], Run]], rounds: int, slo: SLO | None = None
) -> Rounds:
    """Run every contestant once a round, so that a slow minute hits all of them alike.

    A round in which some kind of step had less than 0.9 of its usual CPU share was disturbed by
    another process: it is taken again, at most twice.
    """
    result = Rounds({name: [] for name in contestants}, slo=slo)
    usual: dict[str, float] = {}
    for _ in range(rounds):
        for attempt in range(MOST_REDONE + 1):
            taken = {name: contestant() for name, contestant in contestants.items()}
            shares = [_cpu_shares(run) for run in taken.values()]
            for kind, share in (item for of_run in shares for item in of_run.items()):
                usual[kind] = max(share, usual.get(kind, 0.0))
            disturbed = any(share < DISTURBED * usual[kind] for run in shares for kind, share in run.items())
            if not disturbed or attempt == MOST_REDONE:
                break
            result.redone += 1
        for name, run in taken.items():
            result.runs[name].append(run)
    return result


def _cpu_shares(run: Run) -> dict[str, float]:
    """CPU share of each kind of step, weighted by time; an engine that measures none has none."""
    seconds: dict[str, float] = {}
    busy: dict[str, float] = {}
    for step in run.log:
        if step.cpu_share is not None:
            seconds[step.kind] = seconds.get(step.kind, 0.0) + step.seconds
            busy[step.kind] = busy.get(step.kind, 0.0) + step.seconds * step.cpu_share
    return {kind: busy[kind] / seconds[kind] for kind in seconds}
