"""Continuous batching of transformers itself, through its manager.

`generate_batch` takes one length for all of its requests, so the requests go to the manager one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, GPT2LMHeadModel
from worker import Outcome, Workload, serve

if TYPE_CHECKING:
    from transformers.generation.continuous_batching import ContinuousBatchingManager

NO_EOS = -1


def main() -> None:
    # The manager's thread keeps the process alive until it is stopped, so it is stopped when the input ends.
    with ExitStack() as stack:
        serve(partial(prepare, stack))


def prepare(stack: ExitStack, folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    torch.set_num_threads(workload.threads)
    model = GPT2LMHeadModel.from_pretrained(folder / "weights", attn_implementation="sdpa")
    manager = stack.enter_context(
        model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_EOS),
            continuous_batching_config=settings(workload),
        )
    )
    batch_sizes = count_batches(manager)
    few = workload.max_num_seqs
    generate(manager, batch_sizes, replace(workload, prompts=workload.prompts[:few], max_tokens=[4] * few))
    name = f"transformers {transformers.__version__}, continuous batching"
    return name, partial(generate, manager, batch_sizes, workload)


def settings(workload: Workload) -> ContinuousBatchingConfig:
    """Room for every sequence at its full length and for all first prompts in one step, so nothing waits.

    Left to itself it would take 60% of the free memory. Blocks are not shared, because a second run would
    find the prompts of the first.
    """
    page = ContinuousBatchingConfig().page_size
    longest = max(map(total_length, workload.prompts, workload.max_tokens))
    return ContinuousBatchingConfig(
        max_requests_per_batch=workload.max_num_seqs,
        max_batch_tokens=workload.max_num_seqs * max(map(len, workload.prompts)),
        num_blocks=workload.max_num_seqs * (math.ceil(longest / page) + 1),
        safety_margin=0.0,
        allow_block_sharing=False,
    )


def total_length(prompt: list[int], max_tokens: int) -> int:
    return len(prompt) + max_tokens


def count_batches(manager: ContinuousBatchingManager) -> list[int]:
    """A list to which the manager's scheduler adds the number of requests in each batch that it makes."""
    scheduler = manager.batch_processor.scheduler
    schedule, sizes = scheduler.schedule_batch, []

    def counted(*budgets: int):
        scheduled = schedule(*budgets)
        if scheduled[0]:
            sizes.append(len(scheduled[0]))
        return scheduled

    scheduler.schedule_batch = counted
    return sizes


def generate(manager: ContinuousBatchingManager, batch_sizes: list[int], workload: Workload) -> Outcome:
    batch_sizes.clear()
    with manager.pause():  # so that its first batch sees all of the requests
        names = [
            manager.add_request(prompt, max_new_tokens=max_tokens)
            for prompt, max_tokens in zip(workload.prompts, workload.max_tokens, strict=True)
        ]
    done: dict[str, list[int]] = {}
    while len(done) < len(names):
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("the manager's thread has ended")
        if result is not None and result.error is not None:
            raise RuntimeError(result.error)
        if result is not None:
            done[result.request_id] = list(result.generated_tokens)
    return Outcome([done[name] for name in names], steps=len(batch_sizes), most_at_once=max(batch_sizes))


if __name__ == "__main__":
    main()
