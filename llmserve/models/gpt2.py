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

# attend(layer, q, k, v) -> the attention output; all (tokens, heads, head_dim)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Norm = tuple[Tensor, Tensor]


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
    attention_norm: Norm
    qkv: Linear
    attention_out: Linear
    mlp_norm: Norm
    mlp_up: Linear  # with GELU
    mlp_down: Linear


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
            return take(f"{name}.weight"), take(f"{name}.bias")

        def product(name: str, gelu: bool = False) -> Linear:
            return form(take(f"{name}.weight").T, take(f"{name}.bias"), gelu)  # stored as (in, out)

        self.blocks = [
            Block(
                norm(f"h.{i}.ln_1"),
                product(f"h.{i}.attn.c_attn"),
                product(f"h.{i}.attn.c_proj"),
                norm(f"h.{i}.ln_2"),
                product(f"h.{i}.mlp.c_fc", gelu=True),
                product(f"h.{i}.mlp.c_proj"),
            )
            for i in range(config.num_layers)
        ]
        self.final_norm = norm("ln_f")
        self.token_embedding, self.position_embedding = take("wte.weight"), take("wpe.weight")
        self.vocabulary: Linear = form(self.token_embedding)

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
        heads = (len(tokens), 3, self.config.num_heads, self.config.head_dim)
        for layer, block in enumerate(self.blocks):
            q, k, v = block.qkv(self._norm(x, block.attention_norm)).view(heads).unbind(1)
            x = x + block.attention_out(attend(layer, q, k, v).reshape(x.shape))
            x = x + block.mlp_down(block.mlp_up(self._norm(x, block.mlp_norm)))
        x = x if head_rows is None else x[head_rows]
        return self.vocabulary(self._norm(x, self.final_norm))

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return F.layer_norm(x, (self.config.hidden,), *norm, self.config.norm_eps)
