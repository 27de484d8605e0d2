"""Policies on the same requests, a row each; one that breaks is a row that says how, and the others go on."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .costmodel import CONTEXT, BeyondFitted, SimulatedEngine, Work, step_work
from .loop import Engine, PolicyError, serve
from .metrics import SLO, Summary, summarise
from .policies import Policy, first_come
from .progress import default_progress
from .recorded import recorded_cost, recorded_on
from .request import Request, whole
from .run import Run
from .workload import HEADLINE, Workload, realised_load

if TYPE_CHECKING:
    import pandas as pd

# What the table shows: a metric of Summary, its label, by what it is multiplied, how it is written.
SHOWN = (
    ("throughput", "tokens/s", 1.0, "{:.0f}"),
    ("ttft_p50", "TTFT p50, s", 1.0, "{:.2f}"),
    ("ttft_p99", "TTFT {tail}, s", 1.0, "{:.2f}"),
    ("tpot_p50", "TPOT p50, ms", 1e3, "{:.0f}"),
    ("itl_p99", "ITL {tail}, ms", 1e3, "{:.0f}"),
    ("goodput_tokens", "goodput, tokens/s", 1.0, "{:.0f}"),
    ("slot_efficiency", "slot efficiency", 1.0, "{:.2f}"),
)


@dataclass(frozen=True)
class Entry:
    """One policy's part: its run and numbers, or in `error` what it did wrong, in words."""

    policy: str
    run: Run | None = None
    summary: Summary | None = None
    error: str = ""


@dataclass(frozen=True, repr=False)
class Race:
    """The entries in the order given. `table` is a pandas table; in a notebook a race shows itself."""

    entries: tuple[Entry, ...]
    note: str

    @property
    def runs(self) -> dict[str, Run]:
        """The runs by policy, of those that came to the end."""
        return {entry.policy: entry.run for entry in self.entries if entry.run}

    @property
    def errors(self) -> dict[str, str]:
        """What the others did wrong, by policy."""
        return {entry.policy: entry.error for entry in self.entries if entry.error}

    @property
    def columns(self) -> list[str]:
        """The labels of the table; a p99 of fewer than 100 values says that it is their maximum."""
        done = [entry.summary for entry in self.entries if entry.summary]
        counts = {"ttft_p99": [s.n for s in done], "itl_p99": [s.tokens - s.n for s in done]}
        return [label.format(tail=_tail(counts.get(metric, []))) for metric, label, _, _ in SHOWN]

    @property
    def table(self) -> pd.DataFrame:
        """One row a policy; nan where it broke, and then a last column, error."""
        import pandas as pd

        rows = [[*_values(entry), entry.error] for entry in self.entries]
        names = pd.Index([entry.policy for entry in self.entries], name="policy")
        table = pd.DataFrame(rows, names, [*self.columns, "error"])
        return table if self.errors else table.drop(columns="error")

    def __str__(self) -> str:
        cells = [["policy", *self.columns], *(_written(entry) for entry in self.entries)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        errors = {entry.policy: entry.error for entry in self.entries}
        lines = [self.note]
        for name, *values in cells:
            told = errors.get(name) and f"  {errors[name]}"
            fixed = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
            lines.append(name.ljust(widths[0]) + (told or "  " + "  ".join(fixed)))
        return "\n".join(lines)

    __repr__ = __str__  # the runs are far too long to show

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(label)}</th>" for label in ("policy", *self.columns))
        body = "".join(f"<tr>{_html_cells(entry)}</tr>" for entry in self.entries)
        caption = f"<caption>{html.escape(self.note)}</caption>"
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f'<table class="dataframe">{caption}{table}</table>'


def race(
    policies: Iterable[Policy],
    requests: Iterable[Request] | Workload = HEADLINE,
    engine: Engine | None = None,
    slo: SLO | None = None,
) -> Race:
    """Serve the same requests with each policy, one after the other, on one engine.

    requests   a list, or a workload, whose load is scaled to this engine
    engine     None: simulated at the recorded prices, with as many slots as the policies want and room
               for the longest request. A real engine measures, in a single round
    slo        limits for goodput; None: the post's, 25 and 3 full decode steps of this engine

    ValueError if there is no policy or no request. An error of the engine's own is not caught.
    """
    policies = [policies] if isinstance(policies, Policy) else list(policies)
    if not policies:
        raise ValueError("policies=[]: nothing to race; give at least one, as in [Static(8)]")
    requests = requests if isinstance(requests, Workload) else list(requests)
    if not requests:
        raise ValueError("requests=[]: nothing to serve; give at least one request")
    given, engine = engine, engine or recorded_engine(policies, requests)
    step = full_decode_step(engine)
    asked = requests.requests(step) if isinstance(requests, Workload) else requests
    slo = slo or SLO.relative(step)
    with warnings.catch_warnings(action="ignore", category=BeyondFitted):  # the note says it
        entries = tuple(
            _entry(name, policy, asked, engine, slo)
            for name, policy in zip(_names(policies), policies, strict=True)
        )
    return Race(entries, _note(entries, asked, given, engine, step, slo))


def recorded_engine(policies: Sequence[Policy], requests: Sequence[Request] | Workload) -> SimulatedEngine:
    """A simulated engine at recorded prices: slots for all that the policies want, room for the longest."""
    slots = max(whole(getattr(policy, "max_num_seqs", 1)) or 1 for policy in policies)
    if isinstance(requests, Workload):
        room = requests.max_model_len
    else:
        room = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    return SimulatedEngine(slots, room, recorded_cost())


def full_decode_step(engine: Engine) -> float:
    """Seconds of a decode step with every slot busy: computed if the engine is simulated, else measured."""
    context = min(CONTEXT, engine.max_model_len)
    if isinstance(engine, SimulatedEngine):
        return engine.cost.full_decode_step(engine.max_num_seqs, context)
    from .measure import full_batch_decode_step

    return full_batch_decode_step(engine, context)


# -- one policy ------------------------------------------------------------------------------------


def _entry(name: str, policy: Policy, requests: list[Request], engine: Engine, slo: SLO) -> Entry:
    if isinstance(policy, type):
        return Entry(name, error=f"this is the class, not a policy: make one, as in {policy.__name__}(...)")
    slots = whole(getattr(policy, "max_num_seqs", None)) or 0
    if slots > engine.max_num_seqs:
        remedy = "give the policy fewer slots or the engine more"
        return Entry(name, error=f"max_num_seqs={slots}, but the engine has {engine.max_num_seqs}: {remedy}")
    steps = 0
    with default_progress(name) as report:

        def count(ended: int, total: int) -> None:
            nonlocal steps
            steps += 1
            report(ended, total)

        try:
            run = serve(requests, policy, engine, progress=count)
        except PolicyError as error:
            return Entry(name, error=str(error))
        except Exception as error:
            told = _told(error, policy, engine, steps)
            if told is None:
                raise
            return Entry(name, error=told)
    if not run.submitted:
        return Entry(name, error=f"every request was refused; {run.events[0].detail}")
    return Entry(name, run, summarise(run, slo))


def _told(error: Exception, policy: Policy, engine: Engine, steps: int) -> str | None:
    """An exception in a policy's own code: where it was raised, and when. None if the engine raised it."""
    where, at = "", error.__traceback__
    while at is not None:
        this = at.tb_frame.f_locals.get("self")
        if this is engine:
            return None
        if this is policy:
            where = f" in {at.tb_frame.f_code.co_name}, line {at.tb_lineno}"
        at = at.tb_next
    return f"{type(error).__name__}{where}, at step {steps}: {error}"


def _names(policies: Sequence[Any]) -> list[str]:
    """A row's label each, the same one twice told apart by a number."""
    names: list[str] = []
    for policy in policies:
        name = _label(policy)
        same = sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{same + 1}" if same else name)
    return names


def _label(policy: Any) -> str:
    """As the policy was made: Chunked(8, 64)."""
    if isinstance(policy, type):
        return policy.__name__
    values = [value for value in getattr(policy, "__dict__", {}).values() if value is not first_come]
    inside = ", ".join(str(getattr(value, "__name__", value)) for value in values)
    return f"{type(policy).__name__}({inside:.40})"


# -- how it is shown -------------------------------------------------------------------------------


def _tail(counts: list[int]) -> str:
    """What a p99 of so many values is called: below 100 of them it is their maximum."""
    few = [count for count in counts if count < 100]
    if not few:
        return "p99"
    if len(few) < len(counts):
        return "p99, or max where n < 100"
    return f"max (n = {few[0]})" if len(set(few)) == 1 else f"max (n = {min(few)} to {max(few)})"


def _values(entry: Entry) -> list[float]:
    if entry.summary is None:
        return [math.nan] * len(SHOWN)
    return [factor * getattr(entry.summary, metric) for metric, _, factor, _ in SHOWN]


def _written(entry: Entry) -> list[str]:
    """The row's cells as text; a dash where there is no number."""
    forms = [form for _, _, _, form in SHOWN]
    values = zip(forms, _values(entry), strict=True)
    return [entry.policy, *("–" if math.isnan(value) else form.format(value) for form, value in values)]


def _html_cells(entry: Entry) -> str:
    name, *values = map(html.escape, _written(entry))
    if entry.error:
        return f'<th>{name}</th><td colspan="{len(SHOWN)}">{html.escape(entry.error)}</td>'
    return f"<th>{name}</th>" + "".join(f"<td>{value}</td>" for value in values)


def _note(
    entries: Sequence[Entry],
    requests: Sequence[Request],
    given: Engine | None,
    engine: Engine,
    step: float,
    slo: SLO,
) -> str:
    """Where the numbers come from: engine, requests, load, limits, refused requests, guessed prices."""
    if given is None:
        source = f"Simulated at the prices of a machine ({recorded_on()})"
    else:
        source = "Simulated" if isinstance(engine, SimulatedEngine) else "Measured, one round"
    load = realised_load(requests, engine.max_num_seqs, step) if step else math.inf
    offered = "all queued at the start" if load == math.inf else f"realised load {load:.2f}"
    limits = f"limits: TTFT {slo.ttft:.3g} s, TPOT {1e3 * slo.tpot:.3g} ms"
    refused = max((len(requests) - len(entry.run.submitted) for entry in entries if entry.run), default=0)
    less = f"; {refused} refused, {_first_refusal(entries)}" if refused else ""
    return f"{source}. {len(requests)} requests, {offered}; {limits}{less}.{_guessed(entries, engine)}"


def _first_refusal(entries: Sequence[Entry]) -> str:
    events = [event for entry in entries if entry.run for event in entry.run.events]
    return next(f"the first: {event.detail}" for event in events if event.kind == "refuse")


def _guessed(entries: Sequence[Entry], engine: Engine) -> str:
    """A sentence on steps far beyond what the simulated engine's prices were fitted to, if there are any."""
    runs = [entry.run for entry in entries if entry.run]
    if not runs or not isinstance(engine, SimulatedEngine):
        return ""
    works = [step_work(step) for run in runs for step in run.log]
    beyond = engine.cost.beyond(Work(*map(max, zip(*works, strict=True))))
    told = f" Times of the largest steps are a guess, beyond what was fitted: {'; '.join(beyond)}."
    return told if beyond else ""
