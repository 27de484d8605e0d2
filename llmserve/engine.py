"""The real engine: one call for decodes, whole prompts and chunks, timed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NoReturn, TypeVar

import torch

from .costmodel import SimulatedEngine
from .kv import CatCache, PagedCache, SlotCache
from .loop import serve
from .models.gpt2 import GPT2
from .policies import Continuous
from .pool import Pool
from .progress import silent
from .request import Chunk, Request, StepResult

T = TypeVar("T")


class Engine:
    """A model and a cache. `loop_seconds` is what the loop's own Python costs a step."""

    def __init__(
        self, model: GPT2, cache: SlotCache | PagedCache | CatCache, loop_seconds: float = 0.0
    ) -> None:
        self.model, self.cache, self.loop_seconds = model, cache, loop_seconds
        self.vocab_size = model.config.vocab_size
        self.eos_token_id = model.config.eos_token_id
        self.max_model_len = cache.max_model_len
        self.max_num_seqs = cache.max_num_seqs

    def new_pool(self) -> Pool:
        """An empty pool for a new run, and a cache that holds nothing of the last one."""
        self.cache.reset()
        return self.cache.new_pool()

    def step(self, chunks: list[Chunk]) -> StepResult:
        """Compute the chunks together. Token ids are parallel to them, None where none is due.

        Greedy: the best logit, the lowest id among equals. RuntimeError if a logit is not a number.
        """
        self._synchronise()
        wall, cpu = time.perf_counter(), time.process_time()
        token_ids = self._compute(chunks)
        self._synchronise()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return StepResult(token_ids, wall + self.loop_seconds, cpu / (wall * torch.get_num_threads()))

    def logits(self, chunks: list[Chunk]) -> list[torch.Tensor | None]:
        """The step's logits (vocab_size,), parallel to the chunks; None where no token is due."""
        order = _compute_order(chunks)
        return _parallel(chunks, order, self._forward([chunks[i] for i in order]))

    def _compute(self, chunks: list[Chunk]) -> list[int | None]:
        order = _compute_order(chunks)
        logits = self._forward([chunks[i] for i in order])
        best = logits.argmax(dim=-1)  # the first of equals; a NaN counts as the greatest
        finite = logits.gather(1, best[:, None]).isfinite()
        if not finite.all():
            self._refuse(chunks, _parallel(chunks, order, finite[:, 0].tolist()))
        return _parallel(chunks, order, best.tolist())

    def _refuse(self, chunks: list[Chunk], finite: list[bool | None]) -> NoReturn:
        wrong = [chunk for chunk, fine in zip(chunks, finite, strict=True) if fine is False]
        self.cache.spoil([chunk.place for chunk in chunks])
        names = ", ".join(repr(chunk.sequence.id) for chunk in wrong[:8])
        raise RuntimeError(
            f"a logit is not a finite number for {len(wrong)} of {len(chunks)} requests ({names}): the "
            "weights hold NaN or infinity, or these requests overflow in this dtype. If it is all of them, "
            "load the weights again; if it is some, abort those and go on"
        )

    @torch.inference_mode()
    def _forward(self, chunks: list[Chunk]) -> torch.Tensor:
        tokens, positions, head_rows = [], [], []
        for chunk in chunks:
            end = chunk.start + chunk.num_tokens
            tokens += chunk.sequence.token_ids[chunk.start : end]
            positions += range(chunk.start, end)
            if chunk.needs_token:
                head_rows.append(len(tokens) - 1)
        tokens, positions = self._tensor(tokens), self._tensor(positions)
        attend = self.cache.begin_step(chunks, positions)
        rows = None if len(head_rows) == len(tokens) else self._tensor(head_rows)
        return self.model(tokens, positions, attend, rows)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.model.device)

    def _synchronise(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        elif self.model.device.type == "mps":
            torch.mps.synchronize()


def _compute_order(chunks: list[Chunk]) -> list[int]:
    """Single tokens first, by place: then the cache's rows are views in memory order."""
    return sorted(range(len(chunks)), key=lambda i: (chunks[i].num_tokens > 1, chunks[i].place))


def _parallel(chunks: list[Chunk], order: list[int], rows: Iterable[T]) -> list[T | None]:
    """The head rows' results, in compute order, back in the chunks' order; None where there is none."""
    results = iter(rows)
    found = {i: next(results) for i in order if chunks[i].needs_token}
    return [found.get(i) for i in range(len(chunks))]


def measure_loop_seconds(max_num_seqs: int = 8, output_tokens: int = 200) -> float:
    """Seconds of the loop's own Python in one step, from driving an engine that does nothing."""
    engine = SimulatedEngine(max_num_seqs, output_tokens + 1)
    requests = [Request(f"r{i}", (0,), output_tokens, ignore_eos=True) for i in range(max_num_seqs)]
    start = time.perf_counter()
    run = serve(requests, Continuous(max_num_seqs), engine, progress=silent)
    return (time.perf_counter() - start) / len(run.log)
