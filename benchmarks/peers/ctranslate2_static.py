"""Static batches with CTranslate2, which has no continuous batching: in order, each to its longest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import ctranslate2
from ctranslate2.converters import TransformersConverter
from transformers import GPT2Config
from worker import Outcome, Workload, serve


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    converted = folder / "ctranslate2"
    if not (converted / "model.bin").exists():
        Converter(str(folder / "weights")).convert(str(converted), quantization="float32", force=True)
    generator = ctranslate2.Generator(
        str(converted), compute_type="float32", inter_threads=1, intra_threads=workload.threads
    )
    vocab_size = GPT2Config.from_pretrained(folder / "weights").vocab_size
    few = workload.max_num_seqs
    generate(generator, vocab_size, replace(workload, prompts=workload.prompts[:few], max_tokens=[4] * few))
    name = f"CTranslate2 {ctranslate2.__version__}, static batches"
    return name, partial(generate, generator, vocab_size, workload)


class Converter(TransformersConverter):
    """Of weights without a tokenizer: a token's name is its id in decimal."""

    def load_tokenizer(self, tokenizer_class: type, folder: str, **options: object) -> IdsAsTokens:
        return IdsAsTokens(GPT2Config.from_pretrained(folder).vocab_size)


class IdsAsTokens:
    """What the converter asks of a tokenizer. It wants special tokens too, of which we use none."""

    bos_token = eos_token = unk_token = "0"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def get_vocab(self) -> dict[str, int]:
        return {str(token): token for token in range(self.vocab_size)}


def generate(generator: ctranslate2.Generator, vocab_size: int, workload: Workload) -> Outcome:
    outcome = Outcome([], most_at_once=0)
    for first in range(0, len(workload.prompts), workload.max_num_seqs):
        chosen = slice(first, first + workload.max_num_seqs)
        prompts, max_tokens = workload.prompts[chosen], workload.max_tokens[chosen]
        results = generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            max_batch_size=workload.max_num_seqs,
            batch_type="examples",
            max_length=max(max_tokens),
            sampling_topk=1,
            end_token=[vocab_size],  # no such token, so that none ends a request and none is forbidden
            include_prompt_in_result=False,
        )
        outputs = [result.sequences_ids[0] for result in results]
        outcome.token_ids += [output[:count] for output, count in zip(outputs, max_tokens, strict=True)]
        outcome.most_at_once = max(outcome.most_at_once, len(prompts))
    return outcome


if __name__ == "__main__":
    serve(prepare)
