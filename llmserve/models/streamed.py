"""Products and attention of a few rows at the speed of memory, from a C file compiled when first asked for.

An extra: without a compiler, on another device or in another dtype, `linear.why_not_streamed` says so and
the forms that need none are taken.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import record_function

from ..memory import zeros
from .norm import Norm

SOURCE = Path(__file__).with_name("streamed.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
PRODUCT, ATTENTION = "llmserve::product", "llmserve::attention"  # what a profile calls them
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long


class _Linear(ctypes.Structure):
    """`linear` of the C file."""

    _fields_ = [
        *((name, POINTER) for name in ("panels", "bias", "norm_weight", "norm_bias")),
        ("eps", ctypes.c_float),
        *((name, INT) for name in ("k", "n", "gelu")),
    ]


class _Attention(ctypes.Structure):
    """`attention` of the C file."""

    _fields_ = [
        *((name, POINTER) for name in ("keys", "values", "pieces", "ends", "live")),
        *((name, LONG) for name in ("layer", "length", "width", "longest")),
        *((name, INT) for name in ("rows", "heads", "dim")),
    ]


SIGNATURES = {
    "pack": (POINTER, POINTER, INT, INT),
    "product": (POINTER, POINTER, LONG, POINTER, POINTER, INT),
    "attend": (POINTER, INT, POINTER, POINTER, POINTER, LONG, POINTER),
    "through": (POINTER, INT, POINTER, POINTER),
    "panel_width": (),
}


class StreamedLinear:
    """As PlainLinear, in one compiled call; the weight lies in the order in which it is read."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        gelu: bool = False,
        norm: Norm | None = None,
    ) -> None:
        self.compiled = library()
        self.outputs, inputs = weight.shape
        width = self.compiled.panel_width()
        panels = -(-self.outputs // width)
        self.panels = zeros((panels, inputs, width), torch.float32, "cpu", huge=True)
        weight = weight.contiguous()
        self.compiled.pack(weight.data_ptr(), self.panels.data_ptr(), self.outputs, inputs)
        self.bias = None if bias is None else F.pad(bias, (0, panels * width - self.outputs)).contiguous()
        norms = (norm.weight.contiguous(), norm.bias.contiguous()) if norm else (None, None)
        self.tensors = (self.panels, self.bias, *norms)  # what the addresses are of
        eps = norm.eps if norm else 0.0
        self.struct = _Linear(*map(_address, self.tensors), eps, inputs, self.outputs, gelu)
        self._at = ctypes.addressof(self.struct)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        rows = x.shape[0]
        y = x.new_empty(rows, self.outputs)
        with _named(PRODUCT):
            self.compiled.product(self._at, x.data_ptr(), x.stride(0), _address(residual), y.data_ptr(), rows)
        return y


class StreamedLayers:
    """The products of all layers, four a layer in the order in which they are used, for one compiled call."""

    def __init__(self, products: Sequence[StreamedLinear]) -> None:
        self.products = list(products)  # they own what the addresses are of
        self.structs = (_Linear * len(products))(*(product.struct for product in products))
        self.compiled, self.num_layers = library(), len(products) // 4

    def __call__(self, x: Tensor, attention: StreamedAttention) -> Tensor:
        """x (rows, hidden) -> the same after the last layer; x is written over."""
        self.compiled.through(self.structs, self.num_layers, attention.struct, x.data_ptr())
        return x


class StreamedAttention:
    """Attention of some rows to their own sequences, in one compiled call that writes their K and V first.

    keys, values (layers, pieces, heads, length, dim). Row r is of the pieces pieces[r], in order, and has
    ends[r] tokens with its own; where live[r] is False its K and V are there already.
    """

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        pieces: Sequence[Sequence[int]],
        ends: Sequence[int],
        live: Sequence[bool],
    ) -> None:
        _, _, self.heads, length, self.dim = keys.shape
        self.compiled, self.rows = library(), len(ends)
        width = max(map(len, pieces))
        table = torch.tensor([[*row, *[0] * (width - len(row))] for row in pieces])
        rows = (table, torch.tensor(ends), torch.tensor(live, dtype=torch.uint8))
        self.tensors = (keys, values, *rows)
        sizes = (keys.stride(0), length, width, max(ends), self.rows, self.heads, self.dim)
        self.struct = ctypes.pointer(_Attention(*map(_address, self.tensors), *sizes))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v (rows and maybe more, heads, dim) -> (rows, heads, dim)."""
        out = q.new_empty(self.rows, self.heads, self.dim)
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
        with _named(ATTENTION):
            self.compiled.attend(self.struct, layer, *addresses, q.stride(0), out.data_ptr())
        return out


def _named(name: str) -> AbstractContextManager:
    """Torch's profiler knows its own operations only, so ours tell it their names."""
    return record_function(name) if torch.autograd._profiler_enabled() else nullcontext()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@cache
def library() -> ctypes.CDLL:
    """The compiled file; RuntimeError with the compiler's words if there is none."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or clang) was found")
    made_of = SOURCE.read_bytes() + repr((FLAGS, compiler, _processor())).encode()
    path = _folder() / f"streamed-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}")
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made), "-lm"]
        told = subprocess.run(command, capture_output=True, text=True)
        if told.returncode:
            raise RuntimeError(f"{compiler} failed: {told.stderr.strip().splitlines()[-1:]}")
        os.replace(made, path)
    lib = ctypes.CDLL(str(path))
    for name, arguments in SIGNATURES.items():
        getattr(lib, name).argtypes = arguments
    for name in ("pack", "product", "attend", "through"):
        getattr(lib, name).restype = None
    return lib


def _folder() -> Path:
    """Where compiled files are kept; a folder of this process alone if there is no such place."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmserve"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="llmserve-"))


def _processor() -> str:
    """Compiled for one processor, a file is wrong for another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(line for line in lines[:40] if line.startswith(("model name", "flags")))
    except OSError:
        return platform.processor() or platform.machine()
