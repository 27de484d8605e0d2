"""Static batches with `generate` of transformers: in order of arrival, each to its longest request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import GPT2LMHeadModel
from worker import Outcome, Workload, serve

PADDING = 0  # any token: the attention mask hides it


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    torch.set_num_threads(workload.threads)
    model = GPT2LMHeadModel.from_pretrained(folder / "weights", attn_implementation="sdpa").eval()
    # Without an end token all of a batch goes on to the longest request, and no token is forbidden, as
    # min_new_tokens would do.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PADDING
    few = workload.max_num_seqs
    generate(model, replace(workload, prompts=workload.prompts[:few], max_tokens=[4] * few))
    name = f"transformers {transformers.__version__}, static batches"
    return name, partial(generate, model, workload)


def generate(model: GPT2LMHeadModel, workload: Workload) -> Outcome:
    outcome = Outcome([], steps=0, most_at_once=0)
    for first in range(0, len(workload.prompts), workload.max_num_seqs):
        chosen = slice(first, first + workload.max_num_seqs)
        prompts, max_tokens = workload.prompts[chosen], workload.max_tokens[chosen]
        outputs = generate_together(model, prompts, max(max_tokens))
        outcome.token_ids += [output[:count] for output, count in zip(outputs, max_tokens, strict=True)]
        outcome.steps += max(max_tokens)
        outcome.most_at_once = max(outcome.most_at_once, len(prompts))
    return outcome


def generate_together(model: GPT2LMHeadModel, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    width = max(map(len, prompts))
    token_ids = torch.tensor([[PADDING] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    outputs = model.generate(token_ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False)
    return outputs[:, width:].tolist()


if __name__ == "__main__":
    serve(prepare)
