"""llama.cpp with a loop of our own on its low-level calls: they batch sequences, the loop decides which.

Newcomers are prefilled in the same llama_decode in which the others decode, as llama.cpp's server does.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file
from worker import Outcome, Workload, serve

GGML_TYPE_F32 = 0
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # GPT-2 keeps these as (in, out)


def prepare(folder: Path, workload: Workload) -> tuple[str, Callable[[], Outcome]]:
    converted = folder / "llamacpp" / "gpt2-f32.gguf"
    if not converted.exists():
        convert(folder / "weights", converted)
    engine = Engine(converted, workload)
    few = workload.max_num_seqs
    generate(engine, replace(workload, prompts=workload.prompts[:few], max_tokens=[4] * few))
    return f"llama.cpp by llama-cpp-python {llama_cpp.__version__}", partial(generate, engine, workload)


def convert(weights: Path, path: Path) -> None:
    """To GGUF in float32, as llama.cpp's own script does, but without a vocabulary: we feed it token ids."""
    config = json.loads((weights / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    for name, tensor in load_file(weights / "model.safetensors").items():
        tensor = tensor.T if name.endswith(TRANSPOSED) else tensor
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new_name, np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


@dataclass
class Sequence:
    """A running request. Its number in llama.cpp is its place among max_num_seqs."""

    request: int
    slot: int
    pending: list[int]  # tokens that the model has yet to see
    position: int = 0  # of the first of these
    output: list[int] = field(default_factory=list)


class Engine:
    """A model and a context with room for every sequence at its full length, and for all first prompts."""

    def __init__(self, path: Path, workload: Workload) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        longest_prompt = max(map(len, workload.prompts))
        batch_tokens = workload.max_num_seqs * longest_prompt
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = workload.max_num_seqs * (longest_prompt + max(workload.max_tokens))
        params.n_batch = batch_tokens
        params.n_seq_max = workload.max_num_seqs
        params.n_threads = params.n_threads_batch = workload.threads
        params.type_k = params.type_v = GGML_TYPE_F32
        params.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp could not make a context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(batch_tokens, 0, 1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def step(self, running: list[Sequence]) -> None:
        """Shows the model all pending tokens, and gives each sequence its next token."""
        last = self._fill(running)
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        for sequence, index in zip(running, last, strict=True):
            token = self._best(index)
            sequence.position += len(sequence.pending)
            sequence.pending = [token]
            sequence.output.append(token)

    def forget(self, sequence: Sequence) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, sequence.slot, -1, -1)

    def _fill(self, running: list[Sequence]) -> list[int]:
        """Puts all pending tokens into the batch; says where each sequence's last is, the one with logits."""
        batch, last = self.batch, []
        batch.n_tokens = 0
        for sequence in running:
            for offset, token in enumerate(sequence.pending):
                index = batch.n_tokens
                batch.token[index] = token
                batch.pos[index] = sequence.position + offset
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = sequence.slot
                batch.logits[index] = offset == len(sequence.pending) - 1
                batch.n_tokens += 1
            last.append(batch.n_tokens - 1)
        return last

    def _best(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, index)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())


def generate(engine: Engine, workload: Workload) -> Outcome:
    waiting = deque(enumerate(workload.prompts))
    slots = list(range(workload.max_num_seqs))
    running: list[Sequence] = []
    outcome = Outcome([[] for _ in workload.prompts], steps=0, most_at_once=0)
    while waiting or running:
        while waiting and slots:
            request, prompt = waiting.popleft()
            running.append(Sequence(request, slots.pop(), prompt))
        engine.step(running)
        outcome.steps += 1
        outcome.most_at_once = max(outcome.most_at_once, len(running))
        for sequence in [s for s in running if len(s.output) == workload.max_tokens[s.request]]:
            engine.forget(sequence)
            running.remove(sequence)
            slots.append(sequence.slot)
            outcome.token_ids[sequence.request] = sequence.output
    return outcome


if __name__ == "__main__":
    serve(prepare)
