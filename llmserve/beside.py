"""The recorded race against other engines: `benchmarks/engines.py` writes it, a page of the book shows it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from statistics import median
from typing import Any

from .roofline import Peak, StepWork
from .workload import Lognormal, Prompts, Workload

FILE = "engines.json"


@dataclass(frozen=True)
class Racer:
    """One engine's rounds: output tokens a second in each, and what it says of its own schedule.

    redone            runs taken again because another process disturbed them
    steps             calls of the model in a run; None where the engine does not tell
    most_at_once      sequences in its largest step
    same_requests     requests whose tokens are all those of the first racer
    resident_bytes    the most memory that its process held
    """

    name: str
    engine: str
    tokens_per_second: list[float]
    cpu_share: list[float]
    disturbed: list[bool]
    redone: int
    steps: int | None
    most_at_once: int | None
    same_requests: int
    resident_bytes: int
    notes: dict[str, str]

    @property
    def label(self) -> str:
        """Name and version, without the build number that some add."""
        return re.sub(r"(\d)-[\w-]+", r"\1", self.engine)

    @property
    def is_ours(self) -> bool:
        return self.engine.startswith("llmserve")

    @property
    def rate(self) -> float:
        return median(self.tokens_per_second)


@dataclass(frozen=True)
class Race:
    """All engines on one workload, in interleaved rounds, and what the machine could do at best."""

    machine: dict[str, Any]
    date: str
    workload: Workload
    peak: Peak
    racers: list[Racer]

    @property
    def fastest(self) -> Racer:
        """The fastest of the others."""
        return max((racer for racer in self.racers if not racer.is_ours), key=lambda racer: racer.rate)

    def __getitem__(self, name: str) -> Racer:
        return next(racer for racer in self.racers if racer.name == name)

    def most_tokens_per_second(self, work: StepWork) -> float:
        """What no engine can exceed that reads every weight once a step and does the prompts apart.

        Prompts cost arithmetic. After its first token, which the prompt's pass gives, each request needs
        a row in a step for every token; a step has at most `max_num_seqs` rows and reads all weights.
        """
        prompts, outputs = self.workload.prompt_lengths(), self.workload.output_lengths()
        computing = sum(work.prefill_flops(1, length) for length in prompts) / self.peak.flops
        steps = (sum(outputs) - len(outputs)) / self.workload.max_num_seqs
        return sum(outputs) / (computing + steps * work.weight_bytes / self.peak.bandwidth)


def recorded() -> Race:
    """The race that came with the package; ValueError if it has none."""
    path = resources.files("llmserve").joinpath("data", "recorded", FILE)
    if not path.is_file():
        raise ValueError(
            f"no race is recorded: python benchmarks/engines.py --json llmserve/data/recorded/{FILE}"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    # A workload has had fields since that an older record lacks; it means their defaults.
    fields = {name: v for name, v in found["workload"].items() if name in Workload.__dataclass_fields__}
    fields |= {"output": Lognormal(**fields["output"]), "prompts": Prompts(**fields["prompts"])}
    return Race(
        found["machine"],
        found["date"],
        Workload(**fields),
        Peak(median(found["bandwidth"]), median(found["flops"])),
        [Racer(**racer) for racer in found["engines"]],
    )
