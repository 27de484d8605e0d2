"""Prompt and output lengths, arrivals and offered load: a list of requests, the same on every machine.

Everything comes from `random.Random.random()` alone, the one draw that Python keeps stable across
versions, and each of prompts, outputs, places and arrivals has a stream of its own, so that changing
one leaves the others as they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, pstdev

from .request import Request

VOCAB_SIZE = 50256  # GPT-2's ids without the end-of-sequence token


@dataclass(frozen=True)
class Lognormal:
    """Output lengths: lognormal with a mean before clipping, then rounded and clipped to low...high."""

    mean: float
    sigma: float
    low: int = 4
    high: int = 160

    def __post_init__(self) -> None:
        if not (self.mean > 0 and self.sigma >= 0 and 1 <= self.low <= self.high):
            raise ValueError(f"{self}: give mean > 0, sigma >= 0 and 1 <= low <= high, in tokens")

    def draw(self, n: int, stream: random.Random) -> list[int]:
        mu = math.log(self.mean) - self.sigma**2 / 2
        lengths = [round(math.exp(mu + self.sigma * _normal(stream))) for _ in range(n)]
        return [min(max(length, self.low), self.high) for length in lengths]


@dataclass(frozen=True)
class Prompts:
    """Lengths, of prompts or of outputs: uniform in low...high, and an exact share of long ones.

    The long ones come in random places, or with `long_first` in front of all others.
    """

    low: int = 16
    high: int = 64
    long: int = 256
    long_share: float = 0.0
    long_first: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.low <= self.high and self.long >= 1 and 0 <= self.long_share <= 1):
            raise ValueError(f"{self}: give 1 <= low <= high, long >= 1 and a long_share of 0 to 1")

    def draw(self, n: int, stream: random.Random) -> list[int]:
        lengths = [self.low + int(stream.random() * (self.high - self.low + 1)) for _ in range(n)]
        places = sorted(range(n), key=[stream.random() for _ in range(n)].__getitem__)
        for place in places[: round(n * self.long_share)]:
            lengths[place] = self.long
        return sorted(lengths, key=lambda length: length != self.long) if self.long_first else lengths


@dataclass(frozen=True)
class Workload:
    """One experiment's requests and the slots they are meant for.

    load         offered load, as a multiple of full-batch decode capacity; None: all queued at time 0
    burstiness   shape of the gamma-distributed arrival gaps; 1 is Poisson, smaller is burstier
    queued       so many are there at time 0, and the others arrive from then on
    classes      priorities 0, 1 ... below this number, equally many of each in random places
    """

    name: str
    num_requests: int
    max_num_seqs: int
    max_model_len: int
    output: Lognormal | Prompts
    prompts: Prompts = Prompts()
    load: float | None = None
    burstiness: float = 1.0
    seed: int = 0
    queued: int = 0
    classes: int = 1

    def __post_init__(self) -> None:
        if self.num_requests < 1 or not self.burstiness > 0:
            raise ValueError(
                f"workload {self.name!r}: num_requests={self.num_requests!r}, "
                f"burstiness={self.burstiness!r}; give at least 1 request, and a burstiness above 0"
            )
        if not 0 <= self.queued <= self.num_requests or self.classes < 1:
            raise ValueError(
                f"workload {self.name!r}: queued={self.queued!r}, classes={self.classes!r}; give 0 to "
                f"{self.num_requests} requests that are queued, and at least 1 class"
            )
        if self.load is not None and not 0 < self.load < math.inf:
            raise ValueError(
                f"workload {self.name!r}: load={self.load!r}; give a multiple of full-batch decode "
                "capacity above 0, or None to queue all requests at the start"
            )

    def with_(self, **changes: object) -> Workload:
        """The same workload with something changed; `sigma=` reaches into the output lengths."""
        if "sigma" in changes:
            changes["output"] = replace(self.output, sigma=changes.pop("sigma"))
        return replace(self, **changes)

    def _stream(self, what: str) -> random.Random:
        return random.Random(f"{self.seed}/{what}")

    def output_lengths(self) -> list[int]:
        return self.output.draw(self.num_requests, self._stream("outputs"))

    def prompt_lengths(self) -> list[int]:
        return self.prompts.draw(self.num_requests, self._stream("prompts"))

    def priorities(self) -> list[int]:
        stream, ranks = self._stream("priorities"), range(self.num_requests)
        places = sorted(ranks, key=[stream.random() for _ in ranks].__getitem__)
        return [place % self.classes for place in places]

    def unit_arrivals(self) -> list[float]:
        """Arrival times at one request per second on average; zeros if all are queued."""
        if self.load is None:
            return [0.0] * self.num_requests
        stream, time, times = self._stream("arrivals"), 0.0, [0.0] * self.queued
        for _ in range(self.num_requests - self.queued):
            gap = _gamma(self.burstiness, stream) / self.burstiness
            time += round(gap, 9)  # to a nanosecond: sums then agree to the last bit everywhere
            times.append(time)
        return times

    def request_rate(self, decode_step: float) -> float:
        """Requests a second at this load: load x (slots / full-batch decode step) / mean output length."""
        if self.load is None:
            raise ValueError(f"workload {self.name!r} has all requests queued at 0: it has no rate")
        return self.load * self.max_num_seqs / decode_step / fmean(self.output_lengths())

    def requests(self, decode_step: float | None = None) -> list[Request]:
        """The requests; `decode_step` (seconds, measured) scales the arrivals of a workload with a load."""
        if self.load is not None and (decode_step is None or not decode_step > 0):
            raise ValueError(
                f"workload {self.name!r} offers load {self.load}: give decode_step, this engine's "
                f"full-batch decode step in seconds, not {decode_step!r}"
            )
        rate = 1.0 if self.load is None else self.request_rate(decode_step)
        lengths = zip(self.prompt_lengths(), self.output_lengths(), self.unit_arrivals(), strict=True)
        made = requests_of(
            [(prompt, output, arrival / rate) for prompt, output, arrival in lengths], self.seed
        )
        return [replace(request, priority=p) for request, p in zip(made, self.priorities(), strict=True)]


def requests_of(shapes: Iterable[tuple[int, int, float]], seed: int) -> list[Request]:
    """Requests r0, r1 ... of (prompt tokens, output tokens, arrival in seconds), with drawn token ids.

    Each gets all its output tokens, and an oracle knows how many.
    """
    ids = random.Random(f"{seed}/token ids")
    return [
        Request(
            id=f"r{i}",
            prompt_token_ids=tuple(int(ids.random() * VOCAB_SIZE) for _ in range(prompt)),
            max_tokens=output,
            arrival_time=arrival,
            ignore_eos=True,
            expected_tokens=output,
        )
        for i, (prompt, output, arrival) in enumerate(shapes)
    ]


def guessed(requests: Iterable[Request], sigma: float, seed: int = 0) -> list[Request]:
    """The same requests for an oracle that errs: each hint times a factor whose logarithm is normal.

    `sigma` is its standard deviation: 0 leaves all as they are; at 0.7 every third hint is off by more than
    a factor of two. ValueError if a request has no hint or `sigma` is negative.
    """
    if not sigma >= 0:
        raise ValueError(f"sigma={sigma!r}: give the spread of the guesses, 0 or more")
    stream, made = random.Random(f"{seed}/guesses"), []
    for request in requests:
        if request.expected_tokens is None:
            raise ValueError(f"request {request.id!r} has no expected_tokens to guess at: set it")
        guess = request.expected_tokens * math.exp(sigma * _normal(stream))
        made.append(replace(request, expected_tokens=max(1, round(guess))))
    return made


def coefficient_of_variation(lengths: list[int]) -> float:
    """Standard deviation over mean."""
    return pstdev(lengths) / fmean(lengths)


def realised_load(requests: list[Request], max_num_seqs: int, decode_step: float) -> float:
    """What the drawn arrivals really offered: output tokens a second over full-batch decode capacity."""
    last = max(request.arrival_time for request in requests)
    tokens = sum(request.max_tokens for request in requests)
    return tokens / last / (max_num_seqs / decode_step) if last else math.inf


def _uniform(stream: random.Random) -> float:
    """A draw from the open interval (0, 1)."""
    return stream.random() or 2.0**-53


def _normal(stream: random.Random) -> float:
    return NormalDist().inv_cdf(_uniform(stream))


def _gamma(shape: float, stream: random.Random) -> float:
    """Gamma(shape, 1): exponential by its inverse, else Marsaglia and Tsang (2000)."""
    if shape == 1.0:
        return -math.log(_uniform(stream))
    if shape < 1.0:
        return _gamma(shape + 1.0, stream) * _uniform(stream) ** (1.0 / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = _normal(stream)
        v = (1.0 + c * x) ** 3
        if v > 0 and math.log(_uniform(stream)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v


ZOMBIES = Workload("zombies", 48, 8, 224, Lognormal(mean=48, sigma=0.8), seed=1)
HEADLINE = Workload("headline", 64, 8, 416, Lognormal(mean=65, sigma=0.8), Prompts(long_share=0.1), load=0.8)
SHORT = Workload("short", 40, 8, 416, Lognormal(mean=65, sigma=0.8), load=0.8)
LONG_PROMPTS = Workload(
    "long-prompts", 48, 8, 640, Lognormal(mean=65, sigma=0.8), Prompts(long=480, long_share=0.15), load=0.6
)
# Five long requests in front of short ones, on four slots. Those alone fill a third of them.
CONVOY = Workload(
    "convoy",
    30,
    4,
    192,
    Prompts(4, 24, long=128, long_share=1 / 6, long_first=True),
    load=0.8,
    queued=5,
    classes=2,
)
SIGMAS = (0.0, 0.4, 0.8, 1.2)  # the spreads of `zombies` in the post's first table
WORKLOADS = {workload.name: workload for workload in (ZOMBIES, HEADLINE, SHORT, LONG_PROMPTS, CONVOY)}
