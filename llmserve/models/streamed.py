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
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory import zeros

SOURCE = Path(__file__).with_name("streamed.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
SIGNATURES = {
    "pack": (POINTER, POINTER, INT, INT),
    "product": (POINTER, LONG, POINTER, POINTER, POINTER, INT, INT, INT, INT),
    "attend": (*[POINTER] * 3, LONG, *[POINTER] * 6, INT, INT, INT, LONG),
    "panel_width": (),
}


class StreamedLinear:
    """x (rows, in) -> (rows, out), then GELU if asked; the weight lies in the order in which it is read."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> None:
        self.compiled, self.gelu = library(), gelu
        self.outputs, self.inputs = weight.shape
        width = self.compiled.panel_width()
        panels = -(-self.outputs // width)
        self.panels = zeros((panels, self.inputs, width), torch.float32, "cpu", huge=True)
        weight = weight.contiguous()
        self.compiled.pack(weight.data_ptr(), self.panels.data_ptr(), self.outputs, self.inputs)
        self.bias = None if bias is None else F.pad(bias, (0, panels * width - self.outputs)).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        y = x.new_empty(len(x), self.outputs)
        bias = None if self.bias is None else self.bias.data_ptr()
        self.compiled.product(
            x.data_ptr(), x.stride(0), self.panels.data_ptr(), bias, y.data_ptr(),
            len(x), self.outputs, self.inputs, self.gelu,
        )  # fmt: skip
        return y


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
    for name in ("pack", "product", "attend"):
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
