"""GPT-2 as a function of flat, ragged tokens: no batch dimension, no padding, no cache.

Radford et al. (2019), "Language Models are Unsupervised Multitask Learners": pre-norm blocks,
learned positions, GELU in its tanh form, the vocabulary projection tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import Linear, choose_linear
from .norm import Norm
from .streamed import StreamedAttention, StreamedLayers, StreamedLinear

# attend(layer, q, k, v) -> the attention output; all (tokens, heads, head_dim)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """GPT-2 small by default."""

    num_layers: int = 12
    num_heads: int = 12
    hidden: int = 768
    vocab_size: int = 50257
    max_positions: int = 1024
    eos_token_id: int | None = 50256
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    def kv_bytes_per_token(self, bytes_per_value: int = 4) -> int:
        """K and V of one token through all layers."""
        return 2 * self.num_layers * self.hidden * bytes_per_value


@dataclass(frozen=True)
class Block:
    """The four products of a layer; the first and the third begin with the layer's two norms."""

    qkv: Linear
    attention_out: Linear
    mlp_up: Linear  # with GELU
    mlp_down: Linear

    @property
    def products(self) -> tuple[Linear, ...]:
        """In the order in which they are used."""
        return self.qkv, self.attention_out, self.mlp_up, self.mlp_down


class GPT2:
    """The weights, and the network as a call. `state` uses the names of transformers' GPT2LMHeadModel."""

    def __init__(
        self,
        config: Config,
        state: dict[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        linear: str = "auto",
    ) -> None:
        """Takes tensors out of `state` one by one, so that weights are not held twice."""
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        form = choose_linear(linear, dtype, device)
        self.linear = form.__name__

        def take(name: str) -> Tensor:
            return state.pop(f"transformer.{name}").to(self.device, dtype)

        def norm(name: str) -> Norm:
            return Norm(take(f"{name}.weight"), take(f"{name}.bias"), config.norm_eps)

        def product(name: str, gelu: bool = False, norm: Norm | None = None) -> Linear:
            return form(take(f"{name}.weight").T, take(f"{name}.bias"), gelu, norm)  # stored as (in, out)

        self.blocks = [
            Block(
                product(f"h.{i}.attn.c_attn", norm=norm(f"h.{i}.ln_1")),
                product(f"h.{i}.attn.c_proj"),
                product(f"h.{i}.mlp.c_fc", gelu=True, norm=norm(f"h.{i}.ln_2")),
                product(f"h.{i}.mlp.c_proj"),
            )
            for i in range(config.num_layers)
        ]
        self.in_one_call = None
        if form is StreamedLinear:
            self.in_one_call = StreamedLayers(
                [product for block in self.blocks for product in block.products]
            )
        self.token_embedding, self.position_embedding = take("wte.weight"), take("wpe.weight")
        self.vocabulary: Linear = form(self.token_embedding, norm=norm("ln_f"))

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        head_rows: Tensor | None,
    ) -> Tensor:
        """tokens, positions: (T,) of all sequences in the step, one after the other.

        head_rows: indices of the rows whose next token is wanted, or None for all.
        Returns logits (rows, vocab_size).
        """
        x = F.embedding(tokens, self.token_embedding)
        x = x + F.embedding(positions, self.position_embedding)
        whole = self.in_one_call and isinstance(attend, StreamedAttention)
        if whole and not torch.autograd._profiler_enabled():  # a profile wants to see the parts
            x = self.in_one_call(x, attend)
        else:
            x = self._layer_by_layer(x, attend)
        return self.vocabulary(x if head_rows is None else x[head_rows])

    def _layer_by_layer(self, x: Tensor, attend: Attend) -> Tensor:
        heads = (len(x), 3, self.config.num_heads, self.config.head_dim)
        for layer, block in enumerate(self.blocks):
            q, k, v = block.qkv(x).view(heads).unbind(1)
            x = block.attention_out(attend(layer, q, k, v).reshape(x.shape), residual=x)
            x = block.mlp_down(block.mlp_up(x), residual=x)
        return x
