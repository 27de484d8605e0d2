"""One log of a run: events, steps, chunks and tokens. Everything else is derived from it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .request import Request

if TYPE_CHECKING:
    import pandas as pd

    from .metrics import SLO

FORMAT = 1  # raise it when a saved run changes shape
WRONG = (ValueError, TypeError, KeyError, AttributeError)  # what a line of another shape leads to


class Event(NamedTuple):
    """admit, preempt, abort, refuse or finish; `detail` is the place, the reason or the message."""

    time: float
    kind: str
    request_id: str
    detail: str = ""


class ChunkRow(NamedTuple):
    """One sequence's part of one step. `token_id` is None where no head row was computed."""

    request_id: str
    place: Any
    start: int
    num_tokens: int
    kind: str  # prefill, decode or zombie
    token_id: int | None

    @property
    def kept(self) -> bool:
        """Whether the step gave this request a token. A zombie's is computed and thrown away."""
        return self.token_id is not None and self.kind != "zombie"


class Step(NamedTuple):
    """One engine step: when it began, how long it took, what it computed, what it left behind."""

    start: float
    seconds: float
    cpu_share: float | None
    num_waiting: int
    reserved_tokens: int  # of cache memory, as the step ended and before anyone left
    used_tokens: int
    chunks: list[ChunkRow]

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def kind(self) -> str:
        """prefill, decode or mixed, by what the step computed (a zombie row is a decode row)."""
        kinds = {"prefill" if chunk.kind == "prefill" else "decode" for chunk in self.chunks}
        return kinds.pop() if len(kinds) == 1 else "mixed"


@dataclass
class Run:
    """The log of one policy on one engine. `requests`, `steps`, `chunks`, `summary()` are pandas tables."""

    policy: str
    max_num_seqs: int
    submitted: list[Request] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    log: list[Step] = field(default_factory=list)

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request: arrival, first token, end, TTFT, TPOT, tokens, finish reason."""
        from . import tables

        return tables.requests(self)

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step: start, seconds, rows of each kind, queue, cache tokens."""
        from . import tables

        return tables.steps(self)

    @property
    def chunks(self) -> pd.DataFrame:
        """One row a chunk: step, request, place, start, tokens, kind, head row or not."""
        from . import tables

        return tables.chunks(self)

    def summary(self, slo: SLO | None = None) -> pd.DataFrame:
        """One row for the run, by the definitions of `metrics`."""
        from . import tables

        return tables.summary(self, slo)

    def save(self, path: str | Path) -> None:
        """Write the log as gzipped JSON lines; `Run.load` gives it back without loss."""
        head = {"format": FORMAT, "policy": self.policy, "max_num_seqs": self.max_num_seqs}
        with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as file:
            write = lambda *line: file.write(json.dumps(line) + "\n")  # noqa: E731
            write("run", head)
            for request in self.submitted:
                write("request", asdict(request))
            for event in self.events:
                write("event", event)
            for step in self.log:
                write("step", step)
            write("end", len(self.submitted) + len(self.events) + len(self.log))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a saved run; DamagedRun if the file is cut short, of a newer format, or something else."""
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return cls._read(path, (json.loads(line) for line in file))
        except DamagedRun:
            raise
        except (EOFError, *WRONG, zlib.error, gzip.BadGzipFile) as error:
            raise DamagedRun(
                f"{path}: the file is cut short or damaged ({error}); save the run again"
            ) from None

    @classmethod
    def _read(cls, path: str | Path, lines: Iterator[Any]) -> Run:
        tag, head = next(lines, ("", {}))
        found = head.get("format") if tag == "run" else None
        if found is None or found > FORMAT:
            raise DamagedRun(
                f"{path}: format {found or 'none'}, but this llmserve reads up to {FORMAT}: update it"
            )
        run = cls(head["policy"], head["max_num_seqs"])
        readers = {
            "request": (run.submitted, _request),
            "event": (run.events, _event),
            "step": (run.log, _step),
        }
        read = 0
        for tag, value in lines:
            if tag == "end":
                if value == read and next(lines, None) is None:  # to the end: the last bytes are a checksum
                    return run
                break
            rows, reader = readers[tag]
            rows.append(reader(value))
            read += 1
        raise DamagedRun(f"{path}: cut short after {read + 1} lines; save the run again")


class DamagedRun(ValueError):
    """A file that `Run.load` cannot read."""


def _request(fields: dict[str, Any]) -> Request:
    for name in ("prompt_token_ids", "stop_token_ids"):
        fields[name] = tuple(fields[name])
    return Request(**fields)


def _event(values: list[Any]) -> Event:
    return Event(*values)


def _step(values: list[Any]) -> Step:
    *numbers, chunks = values
    return Step(*numbers, [ChunkRow(*chunk) for chunk in chunks])
