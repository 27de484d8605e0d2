"""GPT-2 as an OpenVINO model, written op by op from the saved weights: no torch, no converter.

The form is the one that OpenVINO GenAI can turn into its paged attention: a stateful decoder, whose keys
and values live in ReadValue / Assign pairs and meet the queries in a ScaledDotProductAttention. That
transformation drops the mask, the beam index and the state; they are here so that the model is a valid one
before it as well.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import Node
from openvino import opset13 as ops
from safetensors.numpy import load_file


def saved_ir(folder: Path) -> Path:
    """The folder with the model's IR, in fp32; built from `weights/` when it is not there yet."""
    ir = folder / "openvino"
    if not ir.exists():
        part = folder / "openvino.part"  # renamed at the end, so that a half-written IR is never used
        config = json.loads((folder / "weights" / "config.json").read_text())
        model = Decoder(config, load_file(folder / "weights" / "model.safetensors")).build()
        ov.save_model(model, part / "openvino_model.xml", compress_to_fp16=False)
        part.rename(ir)
    return ir


def ints(*values: int) -> Node:
    return ops.constant(np.array(values, dtype=np.int64))


def scalar(value: int) -> Node:
    return ops.constant(np.int64(value))


class Decoder:
    """Builds the graph; holds what all layers share: the weights, the inputs, the mask and the state."""

    def __init__(self, config: dict, weights: dict[str, np.ndarray]) -> None:
        self.weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
        self.layers, self.heads, self.width = config["n_layer"], config["n_head"], config["n_embd"]
        self.epsilon = config["layer_norm_epsilon"]
        self.input_ids = self.parameter("input_ids", [-1, -1])
        self.attention_mask = self.parameter("attention_mask", [-1, -1])
        self.position_ids = self.parameter("position_ids", [-1, -1])
        self.beam_idx = self.parameter("beam_idx", [-1], np.int32)
        self.assigns: list[Node] = []

    @staticmethod
    def parameter(name: str, shape: list[int], dtype: type = np.int64) -> Node:
        node = ops.parameter(shape, dtype)
        node.friendly_name = name  # GenAI looks some inputs up by the one name, some by the other
        node.output(0).tensor.set_names({name})
        return node

    def build(self) -> ov.Model:
        tokens = self.weight("wte.weight")
        hidden = ops.add(
            ops.gather(tokens, self.input_ids, scalar(0)),
            ops.gather(self.weight("wpe.weight"), self.position_ids, scalar(0)),
        )
        mask = self.mask()
        for layer in range(self.layers):
            hidden = ops.add(hidden, self.attention(f"h.{layer}", self.norm(f"h.{layer}.ln_1", hidden), mask))
            hidden = ops.add(hidden, self.mlp(f"h.{layer}.mlp", self.norm(f"h.{layer}.ln_2", hidden)))
        logits = ops.matmul(self.norm("ln_f", hidden), tokens, False, True)  # the embedding, transposed
        logits.output(0).tensor.set_names({"logits"})
        inputs = [self.input_ids, self.attention_mask, self.position_ids, self.beam_idx]
        return ov.Model([ops.result(logits)], self.assigns, inputs, "gpt2")

    def weight(self, name: str) -> Node:
        return ops.constant(self.weights[name])

    def linear(self, name: str, hidden: Node) -> Node:
        """GPT-2 saves its matrices as inputs × outputs; OpenVINO's fully connected wants the other order."""
        matrix = ops.constant(np.ascontiguousarray(self.weights[f"{name}.weight"].T))
        return ops.add(ops.matmul(hidden, matrix, False, True), self.weight(f"{name}.bias"))

    def norm(self, name: str, hidden: Node) -> Node:
        centred = ops.mvn(hidden, ints(-1), True, self.epsilon, "INSIDE_SQRT")
        return ops.add(ops.multiply(centred, self.weight(f"{name}.weight")), self.weight(f"{name}.bias"))

    def mlp(self, name: str, hidden: Node) -> Node:
        return self.linear(f"{name}.c_proj", ops.gelu(self.linear(f"{name}.c_fc", hidden), "TANH"))

    def attention(self, name: str, hidden: Node, mask: Node) -> Node:
        fused = self.linear(f"{name}.attn.c_attn", hidden)
        split = ops.variadic_split(fused, scalar(-1), ints(*[self.width] * 3))
        query, key, value = (self.by_head(split.output(i)) for i in range(3))
        key, value = self.with_past(f"{name}.key", key), self.with_past(f"{name}.value", value)
        mixed = ops.scaled_dot_product_attention(query, key, value, mask)
        joined = ops.reshape(ops.transpose(mixed, ints(0, 2, 1, 3)), ints(0, 0, self.width), True)
        return self.linear(f"{name}.attn.c_proj", joined)

    def by_head(self, hidden: ov.Output) -> Node:
        """batch × tokens × width -> batch × heads × tokens × width of a head."""
        head_width = self.width // self.heads
        return ops.transpose(ops.reshape(hidden, ints(0, 0, self.heads, head_width), True), ints(0, 2, 1, 3))

    def with_past(self, name: str, new: Node) -> Node:
        """The state, reordered by beam, and the new tokens' entries after it, which is the next state."""
        head_width = self.width // self.heads
        batch = ops.gather(ops.shape_of(self.input_ids), ints(0), scalar(0))
        empty_shape = ops.concat([batch, ints(self.heads, 0, head_width)], 0)
        empty = ops.broadcast(ops.constant(np.float32(0)), empty_shape)
        past = ops.read_value(empty, name, np.float32, [-1, self.heads, -1, head_width])
        both = ops.concat([ops.gather(past, self.beam_idx, scalar(0)), new], 2)
        self.assigns.append(ops.assign(both, name))
        return both

    def mask(self) -> Node:
        """batch × 1 × new × all tokens: true where a new token may look, at itself and what is before it."""
        new = ops.gather(ops.shape_of(self.input_ids), scalar(1), scalar(0))
        total = ops.gather(ops.shape_of(self.attention_mask), scalar(1), scalar(0))
        at_key = ops.range(scalar(0), total, scalar(1), "i64")
        at_query = ops.range(ops.subtract(total, new), total, scalar(1), "i64")
        causal = ops.less_equal(at_key, ops.unsqueeze(at_query, ints(1)))
        present = ops.unsqueeze(ops.convert(self.attention_mask, "boolean"), ints(1, 2))
        return ops.logical_and(causal, present)
