"""OpenVINO GenAI with continuous batching: chunked prompts in the same steps as the generation.

Its scheduler looks at max_num_seqs only when it does not split prompts ("dynamic split fuse" off), so the
cap is kept here: a request is added when another one has finished, before the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from gpt2_ir import saved_ir
from worker import Outcome, Workload, serve

BLOCK = 32  # tokens in a block of the KV cache on the CPU
WARM_UP_TOKENS = 4
END_OF_TEXT = 50256  # ignored, but without a tokenizer beside the model the pipeline asks for it


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    pipeline = open_pipeline(folder, workload, split_fuse=True)
    generate(pipeline, warm_up(workload), workload.max_num_seqs)
    name = f"OpenVINO GenAI {genai.__version__}"
    return name, lambda: generate(pipeline, workload, workload.max_num_seqs)


def open_pipeline(folder: Path, workload: Workload, split_fuse: bool) -> genai.ContinuousBatchingPipeline:
    """All in fp32, the KV cache too: by default that is 8-bit, and the rest what the CPU is fastest in."""
    properties = {
        "INFERENCE_NUM_THREADS": workload.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    return genai.ContinuousBatchingPipeline(
        saved_ir(folder), scheduler(workload, split_fuse), "CPU", properties
    )


def scheduler(workload: Workload, split_fuse: bool) -> genai.SchedulerConfig:
    """Blocks enough that no sequence is ever put off for want of memory."""
    lengths = [len(p) + n for p, n in zip(workload.prompts, workload.max_tokens, strict=True)]
    config = genai.SchedulerConfig()
    config.dynamic_split_fuse = split_fuse
    config.max_num_seqs = workload.max_num_seqs
    config.enable_prefix_caching = False
    config.num_kv_blocks = workload.max_num_seqs * (max(lengths) // BLOCK + 2)
    return config


def warm_up(workload: Workload) -> Workload:
    """All prompts with a few tokens each, since kernels are compiled when a size of batch is first met."""
    return replace(workload, max_tokens=[min(n, WARM_UP_TOKENS) for n in workload.max_tokens])


def generate(pipeline: genai.ContinuousBatchingPipeline, workload: Workload, at_once: int) -> Outcome:
    """Steps until all is done, with `at_once` requests in the pipeline as long as there are so many."""
    waiting = deque(range(len(workload.prompts)))
    running: dict[int, genai.GenerationHandle] = {}
    outcome = Outcome([[] for _ in workload.prompts], steps=0, most_at_once=0)
    while waiting or running:
        while waiting and len(running) < at_once:
            request = waiting.popleft()
            running[request] = add(pipeline, workload, request)
        pipeline.step()
        outcome.steps += 1
        outcome.most_at_once = max(outcome.most_at_once, pipeline.get_metrics().scheduled_requests)
        for request in [r for r, handle in running.items() if is_done(handle)]:
            outcome.token_ids[request] = running.pop(request).read_all()[0].generated_ids
    return outcome


def add(
    pipeline: genai.ContinuousBatchingPipeline, workload: Workload, request: int
) -> genai.GenerationHandle:
    prompt = ov.Tensor(np.array([workload.prompts[request]], dtype=np.int64))
    return pipeline.add_request(request, prompt, greedy(workload.max_tokens[request]))


def greedy(tokens: int) -> genai.GenerationConfig:
    """Exactly so many tokens. `min_new_tokens` would do as well, but by never choosing the end of a text."""
    return genai.GenerationConfig(
        max_new_tokens=tokens, ignore_eos=True, eos_token_id=END_OF_TEXT, do_sample=False
    )


def is_done(handle: genai.GenerationHandle) -> bool:
    """Raises where the pipeline gave a request up, lest it be taken for a fast one."""
    status = handle.get_status()
    if status not in (genai.GenerationStatus.RUNNING, genai.GenerationStatus.FINISHED):
        raise RuntimeError(f"OpenVINO GenAI ended a request as {status}")
    return status == genai.GenerationStatus.FINISHED


if __name__ == "__main__":
    serve(prepare)
