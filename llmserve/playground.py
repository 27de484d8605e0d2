"""The playground: two policies on the same simulated requests, as plain numbers for a page or a widget.

Standard library only, so that it also runs in a browser, and no second implementation: the runs come from
`serve`, the numbers from `metrics`.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .costmodel import SimulatedEngine
from .life import spans
from .loop import serve
from .metrics import SLO, summarise
from .policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, Policy, Static
from .progress import silent
from .recorded import recorded_cost
from .request import whole
from .run import Run, Step
from .workload import HEADLINE, Workload, realised_load

Values = dict[str, Any]  # every setting by name, checked


@dataclass(frozen=True)
class Control:
    """A number that the reader may change. One whose `step` is whole takes whole numbers only."""

    name: str
    label: str
    low: float
    high: float
    step: float
    default: float
    note: str

    def read(self, value: object) -> float:
        """The value as a plain number; ValueError naming it, the limits and the remedy."""
        is_whole = isinstance(self.step, int)
        number = whole(value) if is_whole else value
        fine = isinstance(number, int | float) and not isinstance(number, bool)
        if not (fine and self.low <= number <= self.high):
            kind = "a whole number" if is_whole else "a number"
            raise ValueError(
                f"{self.label}: {value!r:.40} will not do; give {kind} from {self.low} to {self.high}"
            )
        return number if is_whole else float(number)


CONTROLS = (
    Control("load", "Load", 0.1, 3.0, 0.1, 0.8, "1: as many tokens a second as full batches can decode"),
    Control("sigma", "Spread of output lengths", 0.0, 1.5, 0.1, 0.8, "0: all outputs are equally long"),
    Control("long_share", "Share of long prompts", 0.0, 0.5, 0.05, 0.1, "256 tokens; the others 16 to 64"),
    Control("requests", "Requests", 8, 128, 8, 48, "how many arrive in all"),
    Control("seed", "Seed", 0, 9999, 1, 0, "another seed: other lengths and arrivals"),
    Control("slots", "Slots", 1, 16, 1, 8, "requests that can run at once"),
    Control("budget", "Token budget of a step", 8, 512, 8, 128, "for Chunked only"),
    Control("max_wait", "Longest wait for a batch (s)", 0.0, 10.0, 0.1, 0.3, "for Dynamic only"),
)
POLICIES: dict[str, Callable[[Values], Policy]] = {
    "Static": lambda values: Static(values["slots"]),
    "Dynamic": lambda values: Dynamic(values["slots"], values["max_wait"]),
    "Bucketed": lambda values: Bucketed(values["slots"]),
    "Continuous": lambda values: Continuous(values["slots"]),
    "Mixed": lambda values: Mixed(values["slots"]),
    "Chunked": lambda values: Chunked(values["slots"], values["budget"]),
}
SIDES = {"A": "Static", "B": "Continuous"}  # and what they show at first


def complete(settings: Mapping[str, Any]) -> Values:
    """The settings with defaults for what is missing; ValueError for a bad value or an unknown name."""
    sides = {f"policy_{side.lower()}": default for side, default in SIDES.items()}
    known = [*(control.name for control in CONTROLS), *sides]
    if unknown := set(settings) - set(known):
        raise ValueError(f"there is no setting {min(unknown)!r}; there are {', '.join(known)}")
    values = {control.name: control.read(settings.get(control.name, control.default)) for control in CONTROLS}
    for name, default in sides.items():
        values[name] = settings.get(name, default)
        if values[name] not in list(POLICIES):
            raise ValueError(f"{name}={values[name]!r:.40}: choose one of {', '.join(POLICIES)}")
    return values


def workload(values: Values) -> Workload:
    """The book's headline workload with the reader's changes."""
    return HEADLINE.with_(
        load=values["load"],
        sigma=values["sigma"],
        prompts=replace(HEADLINE.prompts, long_share=values["long_share"]),
        num_requests=values["requests"],
        max_num_seqs=values["slots"],
        seed=values["seed"],
    )


def play(settings: Mapping[str, Any]) -> dict[str, Run]:
    """Both policies on the same requests, by side."""
    values = complete(settings)
    cost, slots = recorded_cost(), values["slots"]
    requests = workload(values).requests(cost.full_decode_step(slots))
    engine = SimulatedEngine(slots, HEADLINE.max_model_len, cost)
    policies = {side: POLICIES[values[f"policy_{side.lower()}"]](values) for side in SIDES}
    return {side: serve(requests, policy, engine, progress=silent) for side, policy in policies.items()}


def simulate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the playground shows, as what JSON can hold; ValueError for a bad setting."""
    values = complete(settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = play(values)
    unit = recorded_cost().full_decode_step(values["slots"])
    slo = SLO.relative(unit)
    requests = runs["A"].submitted
    return {
        "settings": values,
        "decode_step": unit,
        "limits": asdict(slo),
        "realised_load": realised_load(requests, values["slots"], unit),
        "last_arrival": max(request.arrival_time for request in requests),
        "until": max(run.log[-1].end for run in runs.values()),
        "requests": {r.id: [r.arrival_time, len(r.prompt_token_ids), r.max_tokens] for r in requests},
        "notes": list(dict.fromkeys(str(one.message) for one in caught)),
        "runs": {side: told(run, slo) for side, run in runs.items()},
    }


def told(run: Run, slo: SLO) -> dict[str, Any]:
    """One run: its numbers, its timeline, its queue and its steps."""
    summary = asdict(summarise(run, slo))
    return {
        "policy": run.policy,
        "metrics": {name: None if math.isnan(value) else value for name, value in summary.items()},
        "spans": [[one.place, one.start, one.end, one.request_id, one.kind] for one in spans(run.log)],
        "queue": [[step.end, step.num_waiting] for step in run.log],
        "steps": [
            _step(step, waiting, [slots.get(place) for place in range(run.max_num_seqs)])
            for step, waiting, slots in states(run)
        ],
    }


def _step(step: Step, waiting: list[str], slots: list[str | None]) -> dict[str, Any]:
    chunks = [[c.place, c.request_id, c.kind, c.start, c.num_tokens, c.kept] for c in step.chunks]
    return {
        "start": step.start,
        "seconds": step.seconds,
        "queue": waiting,
        "slots": slots,
        "chunks": chunks,
    }


def states(run: Run) -> Iterator[tuple[Step, list[str], dict[int, str]]]:
    """Each step, who waits while it runs, and who sits in which slot.

    The log tells when a request enters a slot. It leaves after the last step that computed for it, as a
    zombie too: no policy here keeps a request that it does not run any more.
    """
    last = {chunk.request_id: number for number, step in enumerate(run.log) for chunk in step.chunks}
    arrivals = deque(sorted(run.submitted, key=lambda request: request.arrival_time))
    events = deque(event for event in run.events if event.kind == "admit")
    waiting: list[str] = []
    slots: dict[int, str] = {}
    for number, step in enumerate(run.log):
        while arrivals and arrivals[0].arrival_time <= step.start:
            waiting.append(arrivals.popleft().id)
        while events and events[0].time <= step.start:
            entered = events.popleft()
            waiting.remove(entered.request_id)
            slots[int(entered.detail)] = entered.request_id
        slots = {place: request for place, request in slots.items() if last[request] >= number}
        yield step, list(waiting), slots
