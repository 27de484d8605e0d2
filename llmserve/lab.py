"""What a notebook opens with: the reader's settings, the model, and ways to show things."""

from __future__ import annotations

import inspect
import math
import os
import textwrap
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch
from IPython.display import HTML, Markdown, display

from . import hardware
from .blockcost import scattered
from .engine import Engine, measure_loop_seconds
from .kv import PagedCache, SlotCache
from .measure import decode_chunks
from .models.linear import why_not_streamed
from .models.load import load_gpt2, resolve_weights
from .request import Chunk
from .settings import Settings

if TYPE_CHECKING:
    from .models.gpt2 import GPT2

T = TypeVar("T")


def start() -> Lab:
    """Read LLMSERVE_*, set the threads, and say what machine and weights the numbers will come from."""
    lab = Lab(Settings.from_env())
    torch.set_num_threads(lab.settings.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    say(lab.sentence)
    return lab


class Lab:
    """One notebook's settings, model and engines."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.weights = resolve_weights(settings.weights)

    @property
    def sentence(self) -> str:
        s, m = self.settings, hardware.machine()
        scale = "quick (fewer requests, one round)" if not s.full else "full (the post's sizes, three rounds)"
        products = "" if s.products == "auto" else f" and {s.products} products"
        text = {"pretrained": "pretrained weights", "random": "random weights, so its text is gibberish"}
        return (
            f"**This run:** GPT-2 small ({text[self.weights]}), "
            f"{s.dtype} on {s.device} with {s.threads} thread{'s' * (s.threads > 1)}{products}; "
            f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB; scale {scale}."
        )

    def pick(self, quick: T, full: T) -> T:
        """The value for the chosen scale."""
        return full if self.settings.full else quick

    @property
    def rounds(self) -> int:
        return self.pick(quick=1, full=3)

    @cached_property
    def model(self) -> GPT2:
        return load_gpt2(self.weights, self.settings.dtype, self.settings.device, self.settings.products)

    @cached_property
    def loop_seconds(self) -> float:
        return measure_loop_seconds()

    @property
    def streams(self) -> bool:
        """Whether the compiled attention can be had, which reads a sequence only as far as it is filled."""
        return why_not_streamed(self.model.dtype, self.model.device, self.model.config.head_dim) is None

    def engine(self, max_num_seqs: int, max_model_len: int, attention: str | None = None) -> Engine:
        """A warm engine with a slot cache; None: the attention that goes with the products."""
        model = self.model
        attention = attention or ("streamed" if self.settings.products == "streamed" else "batched")
        cache = SlotCache(model.config, max_num_seqs, max_model_len, model.dtype, model.device, attention)
        return self._warm(cache, decode_chunks(max_num_seqs, max_model_len // 2))

    def paged_engine(self, num_blocks: int, block_size: int, max_model_len: int, **more: Any) -> Engine:
        """The same with a paged cache; `more` as PagedCache takes it (max_num_seqs, attention, reserve)."""
        model, attention = self.model, "streamed" if self.settings.products == "streamed" else "gathered"
        more = {"dtype": model.dtype, "device": model.device, "attention": attention, **more}
        cache = PagedCache(model.config, num_blocks, block_size, max_model_len, **more)
        return self._warm(cache, scattered(decode_chunks(1, block_size), block_size, num_blocks))

    def _warm(self, cache: SlotCache | PagedCache, chunks: list[Chunk]) -> Engine:
        engine = Engine(self.model, cache, self.loop_seconds)
        for _ in range(3):
            engine.step(chunks)
        return engine

    @cached_property
    def peak(self) -> hardware.Peak:
        return hardware.measure_peak(self.settings.device, self.settings.dtype, self.settings.products)


def say(text: str) -> None:
    """Show Markdown; the numbers in it were made by the cell that says it."""
    display(Markdown(text))


def how_far(guess: float | None, measured: float, unit: str, form: str = ".0f") -> str:
    """A sentence on the reader's guess, made before the measurement; None if there was none."""
    came = f"measured: {measured:{form}} {unit}"
    if guess is None:
        return f"*No guess was made; {came}. Set `GUESS` above the measurement, and run the chapter again.*"
    if isinstance(guess, bool) or not isinstance(guess, int | float) or not math.isfinite(guess):
        raise ValueError(f"GUESS = {guess!r}: give one number, in {unit}, or None")
    if f"{guess:{form}}" == f"{measured:{form}}":
        return f"**Your guess was right:** {came}."
    off = f"{abs(guess / measured - 1):.0%} " if measured else ""
    return f"**Your guess:** {guess:g} {unit}; {came}. {off}too {'high' if guess > measured else 'low'}."


def show_table(caption: str, columns: dict[str, Iterable[Any] | tuple[str, Iterable[Any]]]) -> None:
    """Show a table by columns: a name, then its values, or (a format as in str.format, its values).

    A mapping counts as its values. The caption says what is measured, computed or simulated.
    """
    cells = {}
    for name, column in columns.items():
        formatted = isinstance(column, tuple) and "{" in str(column[0])
        form, values = column if formatted else ("{}", column)
        values = values.values() if isinstance(values, dict) else values
        cells[name] = ["–" if value is None else form.format(value) for value in values]
    table = pd.DataFrame(cells).style.hide(axis="index").set_caption(caption)
    display(HTML(table.set_table_attributes('class="dataframe"').to_html()))


def show_source(thing: Any) -> None:
    """The source of a class or function, highlighted."""
    say(f"```python\n{textwrap.dedent(inspect.getsource(thing)).rstrip()}\n```")
