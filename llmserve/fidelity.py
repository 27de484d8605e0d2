"""How far a simulation can be trusted: its errors, and whether it ranks as the real runs do."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from scipy.stats import spearmanr


@dataclass(frozen=True)
class Fidelity:
    """One metric, simulated against measured, over several contestants.

    errors       simulated / median measured - 1, by contestant
    spreads      largest distance of a round from the median, as a share of it: what noise alone does
    spearman     rank correlation over all contestants, also those that noise alone ranks; nan if all tie
    apart        pairs that have an order to get right: their measured ranges do not overlap, but leave
                 a gap of more than `tie`
    agree        how many of those the simulation puts in the same order
    """

    errors: dict[Hashable, float]
    spreads: dict[Hashable, float]
    spearman: float
    apart: int
    agree: int

    @property
    def median_error(self) -> float:
        return median(map(abs, self.errors.values()))

    @property
    def median_spread(self) -> float:
        return median(self.spreads.values())

    def beyond(self, aim: float) -> list[Hashable]:
        """The contestants whose error exceeds both the aim and their own spread."""
        return [name for name, error in self.errors.items() if abs(error) > max(aim, self.spreads[name])]


def fidelity(
    measured: Mapping[Hashable, Sequence[float]], simulated: Mapping[Hashable, float], tie: float = 0.0
) -> Fidelity:
    """Compare a simulated value with the readings of its contestant, a round each, for all contestants.

    `tie` is a share: values closer than that have no order worth the name, even in a single round.
    """
    middle = {name: median(values) for name, values in measured.items()}
    pairs = [
        (a, b) for a, b in combinations(measured, 2)
        if min(measured[a]) > max(measured[b]) * (1 + tie) or min(measured[b]) > max(measured[a]) * (1 + tie)
    ]  # fmt: skip
    agree = sum((middle[a] - middle[b]) * (simulated[a] - simulated[b]) > 0 for a, b in pairs)
    ours, theirs = list(middle.values()), [simulated[name] for name in measured]
    tied = len(set(ours)) == 1 or len(set(theirs)) == 1
    return Fidelity(
        errors={name: simulated[name] / middle[name] - 1 for name in measured},
        spreads={
            name: max(abs(value - middle[name]) for value in values) / middle[name]
            for name, values in measured.items()
        },
        spearman=math.nan if tied else float(spearmanr(ours, theirs).statistic),
        apart=len(pairs),
        agree=agree,
    )
