"""llmserve: `ours.py FOLDER streamed continuous`, or `ours.py FOLDER packed chunked BUDGET`, and so on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import GPT2Config
from worker import Outcome, Workload, serve

from llmserve.engine import Engine
from llmserve.kv import SlotCache
from llmserve.loop import serve as serve_requests
from llmserve.metrics import output_token_ids
from llmserve.models.load import gpt2_of
from llmserve.policies import Chunked, Continuous
from llmserve.request import Request

FORMS = {"streamed": ("streamed", "streamed"), "packed": ("packed", "batched")}  # products, attention


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    torch.set_num_threads(workload.threads)
    form, attention = FORMS[sys.argv[2]]
    config, state = (
        GPT2Config.from_pretrained(folder / "weights"),
        load_file(folder / "weights" / "model.safetensors"),
    )
    model = gpt2_of(config, state, linear=form)
    requests = [
        Request(f"r{i}", tuple(prompt), n, ignore_eos=True)
        for i, (prompt, n) in enumerate(zip(workload.prompts, workload.max_tokens, strict=True))
    ]
    longest = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    engine = Engine(model, SlotCache(model.config, workload.max_num_seqs, longest, attention=attention))
    kind, *budget = sys.argv[3:]
    policy = {"continuous": Continuous, "chunked": Chunked}[kind](workload.max_num_seqs, *map(int, budget))

    def run(requests: list[Request] = requests) -> Outcome:
        done = serve_requests(requests, policy, engine, progress=lambda ended, total: None)
        token_ids = output_token_ids(done)
        return Outcome(
            [token_ids[request.id] for request in requests],
            steps=len(done.log),
            most_at_once=max(len(step.chunks) for step in done.log),
        )

    run(requests[: workload.max_num_seqs])
    return " ".join(["llmserve", *sys.argv[2:]]), run


if __name__ == "__main__":
    serve(prepare)
