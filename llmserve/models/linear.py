"""A weight product in three forms: plain, packed once for oneDNN, and streamed by a compiled file of ours."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .norm import Norm
from .streamed import StreamedLinear

FORMS = ("auto", "streamed", "packed", "plain")


class Linear(Protocol):
    """x (rows, in), residual (rows, out) -> (rows, out)."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


class PlainLinear:
    """Layer norm if asked, the product with a weight (out, in), GELU (tanh form) if asked, + residual."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        gelu: bool = False,
        norm: Norm | None = None,
    ) -> None:
        self.weight, self.bias, self.gelu, self.norm = weight.contiguous(), bias, gelu, norm

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = self._product(x if self.norm is None else self.norm(x))
        return y if residual is None else residual + y

    def _product(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate="tanh") if self.gelu else y


class PackedLinear(PlainLinear):
    """The same in float32 on a CPU; the weight is copied once into oneDNN's own blocked layout.

    `F.linear` hands a few rows to a routine that reads the weights far below memory bandwidth,
    and lays them out anew at larger row counts. A layout made once costs neither.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        gelu: bool = False,
        norm: Norm | None = None,
    ) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias, gelu, norm)
        self.activation = ("gelu", [], "tanh") if gelu else ("none", [], "")

    def _product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self.activation)


def choose_linear(
    form: str, dtype: torch.dtype, device: torch.device | str
) -> type[PlainLinear | PackedLinear | StreamedLinear]:
    """The class for `form`. "auto" takes packed where a small check says it works, else plain."""
    if form not in FORMS:
        raise ValueError(f"linear={form!r}: choose one of {', '.join(FORMS)}")
    why_not = {"streamed": why_not_streamed, "packed": why_not_packed}
    classes = {"streamed": StreamedLinear, "packed": PackedLinear, "plain": PlainLinear}
    if form == "auto":
        return PlainLinear if why_not_packed(dtype, device) else PackedLinear
    if form in why_not and (reason := why_not[form](dtype, device)):
        raise ValueError(f"linear={form!r} cannot be used here: {reason}; use linear='auto' or 'plain'")
    return classes[form]


def why_not_packed(dtype: torch.dtype, device: torch.device | str) -> str | None:
    """None if packed products exist and agree with plain ones here; otherwise the reason."""
    return _why_not(PackedLinear, "packed", dtype, device)


def why_not_streamed(dtype: torch.dtype, device: torch.device | str, head_dim: int = 64) -> str | None:
    """The same of streamed products, and of streamed attention for heads of so many numbers."""
    if head_dim % 16 or not 0 < head_dim <= 128:
        return f"streamed attention is for heads of 16, 32, ... 128 numbers, not {head_dim}"
    return _why_not(StreamedLinear, "streamed", dtype, device)


def _why_not(
    form: type[PackedLinear | StreamedLinear], name: str, dtype: torch.dtype, device: torch.device | str
) -> str | None:
    if torch.device(device).type != "cpu" or dtype != torch.float32:
        return f"{name} products are for float32 on a CPU, not {dtype} on {device}"
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(15, 96, generator=generator), torch.randn(170, 96, generator=generator)
    bias, residual = torch.randn(170, generator=generator), torch.randn(15, 170, generator=generator)
    norm = Norm(x[0], x[1], 1e-5)
    try:
        for rows, gelu in ((1, False), (3, True), (15, True)):
            expected, found = (
                kind(weight, bias, gelu, norm)(x[:rows], residual[:rows]) for kind in (PlainLinear, form)
            )
            if not torch.allclose(expected, found, rtol=1e-4, atol=1e-4):
                return f"{name} products do not agree with plain ones here"
    except (AttributeError, OSError, RuntimeError) as error:
        return f"there are no {name} products here ({str(error).splitlines()[0]})"
    return None
