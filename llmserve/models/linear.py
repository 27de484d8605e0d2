"""A weight product in three forms: plain, packed once for oneDNN, and streamed by a compiled file of ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .streamed import StreamedLinear

Linear = Callable[[Tensor], Tensor]
FORMS = ("auto", "streamed", "packed", "plain")


class PlainLinear:
    """x (rows, in) -> (rows, out) with a weight (out, in), then GELU (tanh form) if asked."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> None:
        self.weight, self.bias, self.gelu = weight.contiguous(), bias, gelu

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate="tanh") if self.gelu else y


class PackedLinear:
    """The same in float32 on a CPU; the weight is copied once into oneDNN's own blocked layout.

    `F.linear` hands a few rows to a routine that reads the weights far below memory bandwidth,
    and lays them out anew at larger row counts. A layout made once costs neither.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self.activation = ("gelu", [], "tanh") if gelu else ("none", [], "")

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self.activation)


def choose_linear(
    form: str, dtype: torch.dtype, device: torch.device | str
) -> type[PlainLinear | PackedLinear | StreamedLinear]:
    """The class for `form`. "auto" takes packed where a small check says it works, else plain."""
    if form not in FORMS:
        raise ValueError(f"linear={form!r}: choose one of {', '.join(FORMS)}")
    if form == "plain":
        return PlainLinear
    wanted, why_not = (
        (StreamedLinear, why_not_streamed) if form == "streamed" else (PackedLinear, why_not_packed)
    )
    reason = why_not(dtype, device)
    if reason and form != "auto":
        raise ValueError(f"linear={form!r} cannot be used here: {reason}; use linear='auto' or 'plain'")
    return PlainLinear if reason else wanted


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
    bias = torch.randn(170, generator=generator)
    try:
        for rows, gelu in ((1, False), (3, True), (15, True)):
            expected, found = (kind(weight, bias, gelu)(x[:rows]) for kind in (PlainLinear, form))
            if not torch.allclose(expected, found, rtol=1e-4, atol=1e-4):
                return f"{name} products do not agree with plain ones here"
    except (AttributeError, OSError, RuntimeError) as error:
        return f"there are no {name} products here ({str(error).splitlines()[0]})"
    return None
