"""Promise 5: the same seed gives the same workload everywhere, and it is the one the post describes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from llmserve.request import Request
from llmserve.workload import (
    CONVOY,
    HEADLINE,
    SHORT,
    SIGMAS,
    VOCAB_SIZE,
    WORKLOADS,
    ZOMBIES,
    Lognormal,
    Prompts,
    Workload,
    coefficient_of_variation,
    guessed,
    realised_load,
)

# -- pinned: these numbers must come out on every machine and Python version --------------------------

PINNED = {
    # workload: first prompt lengths, their sum; first output lengths, their sum
    "zombies": ([56, 55, 62, 25, 32, 29, 35, 41], 2093, [33, 5, 18, 45, 28, 27, 37, 15], 2489),
    "headline": ([30, 20, 30, 34, 256, 23, 61, 40], 3877, [21, 87, 67, 79, 33, 40, 35, 44], 3981),
    "short": ([30, 20, 30, 34, 37, 23, 61, 40], 1492, [21, 87, 67, 79, 33, 40, 35, 44], 2335),
    "long-prompts": ([30, 20, 30, 480, 37, 23, 61, 40], 4959, [21, 87, 67, 79, 33, 40, 35, 44], 2923),
    "convoy": ([30, 20, 30, 34, 37, 23, 61, 40], 1092, [128, 128, 128, 128, 128, 7, 20, 18], 989),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_lengths_are_pinned(name: str) -> None:
    prompts, outputs = WORKLOADS[name].prompt_lengths(), WORKLOADS[name].output_lengths()
    assert (prompts[:8], sum(prompts), outputs[:8], sum(outputs)) == PINNED[name]


@pytest.mark.parametrize(
    ("name", "first", "total"),
    [
        ("zombies", [(30672, 17992, 8869), (17347, 25794, 46526)], 51693962),
        ("headline", [(44750, 37509, 21380), (39257, 20876, 31892)], 98662036),
        ("short", [(44750, 37509, 21380), (39257, 20876, 31892)], 37649822),
        ("long-prompts", [(44750, 37509, 21380), (39257, 20876, 31892)], 127064137),
        ("convoy", [(44750, 37509, 21380), (39257, 20876, 31892)], 27508366),
    ],
)
def test_token_ids_are_pinned(name: str, first: list[tuple[int, ...]], total: int) -> None:
    requests = WORKLOADS[name].requests(decode_step=0.04)
    assert [request.prompt_token_ids[:3] for request in requests[:2]] == first
    assert sum(sum(request.prompt_token_ids) for request in requests) == total


ARRIVALS = {
    # burstiness: first unit-rate arrivals of `headline`, and the last
    1.0: ([0.172924887, 0.667709474, 0.969826922, 2.013576069], 56.103000807),
    0.25: ([2.682003446, 5.07027975, 5.076763561, 8.486197396], 73.11847798000002),
    4.0: ([1.48315663, 2.742215216, 3.8434394789999997, 4.546224963999999], 69.52620040300002),
}


@pytest.mark.parametrize("burstiness", ARRIVALS)
def test_unit_arrivals_are_pinned_to_the_last_bit(burstiness: float) -> None:
    arrivals = HEADLINE.with_(burstiness=burstiness).unit_arrivals()
    assert (arrivals[:4], arrivals[-1]) == ARRIVALS[burstiness]


def test_queued_workloads_have_all_arrivals_at_zero() -> None:
    assert ZOMBIES.unit_arrivals() == [0.0] * 48


# -- what the named workloads are --------------------------------------------------------------------


def test_headline_is_the_posts() -> None:
    prompts, outputs = HEADLINE.prompt_lengths(), HEADLINE.output_lengths()
    assert (len(prompts), HEADLINE.max_num_seqs, HEADLINE.max_model_len, HEADLINE.load) == (64, 8, 416, 0.8)
    assert fmean(prompts) == pytest.approx(61.6, abs=2)
    assert fmean(outputs) == pytest.approx(60, abs=2.5)
    assert fmean(prompts) + fmean(outputs) == pytest.approx(122, abs=3)
    assert all(16 <= n <= 64 or n == 256 for n in prompts)
    assert all(4 <= n <= 160 for n in outputs)


@pytest.mark.parametrize(("sigma", "cv"), list(zip(SIGMAS, (0.0, 0.4, 0.8, 1.05), strict=True)))
def test_zombies_spread_their_outputs_as_the_sigmas_say(sigma: float, cv: float) -> None:
    lengths = ZOMBIES.with_(sigma=sigma).output_lengths()
    assert len(lengths) == 48 and all(4 <= n <= 160 for n in lengths)
    assert coefficient_of_variation(lengths) == pytest.approx(cv, abs=0.07)
    assert fmean(lengths) == pytest.approx(48, abs=4)


def test_short_is_headline_without_long_prompts() -> None:
    assert max(SHORT.prompt_lengths()) <= 64
    assert SHORT.output_lengths() == HEADLINE.output_lengths()[:40]
    assert SHORT.unit_arrivals() == HEADLINE.unit_arrivals()[:40]


def test_convoy_has_one_long_request_more_than_slots_in_front_and_short_ones_behind() -> None:
    requests = CONVOY.requests(decode_step=0.03)
    assert [r.max_tokens for r in requests[:5]] == [128] * 5 and CONVOY.max_num_seqs == 4
    assert all(4 <= r.max_tokens <= 24 for r in requests[5:])
    assert [r.arrival_time for r in requests[:5]] == [0.0] * 5
    assert all(0 < a.arrival_time < b.arrival_time for a, b in pairwise(requests[5:]))
    assert sorted(r.priority for r in requests) == [0] * 15 + [1] * 15


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_request_can_run(name: str) -> None:
    workload = WORKLOADS[name]
    requests = workload.requests(decode_step=0.04)
    assert len({request.id for request in requests}) == workload.num_requests
    for request in requests:
        assert len(request.prompt_token_ids) + request.max_tokens <= workload.max_model_len
        assert all(0 <= token < VOCAB_SIZE for token in request.prompt_token_ids)
        assert request.ignore_eos and request.expected_tokens == request.max_tokens


# -- each part on its own ----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "share", "count"), [(64, 0.1, 6), (40, 0.15, 6), (10, 0.0, 0), (7, 1.0, 7)])
def test_the_number_of_long_prompts_is_exact_and_their_places_vary(n: int, share: float, count: int) -> None:
    draws = [Prompts(long_share=share).draw(n, random.Random(seed)) for seed in range(20)]
    assert {lengths.count(256) for lengths in draws} == {count}
    places = {tuple(i for i, length in enumerate(lengths) if length == 256) for lengths in draws}
    assert len(places) == 1 if count in (0, n) else len(places) > 10


CHANGES: dict[str, tuple[dict[str, object], set[str]]] = {
    "sigma": ({"sigma": 0.1}, {"outputs"}),
    "long share": ({"prompts": Prompts(long_share=0.5)}, {"prompts"}),
    "burstiness": ({"burstiness": 0.5}, {"arrivals"}),
    "load": ({"load": 2.0}, set()),
    "seed": ({"seed": 99}, {"outputs", "prompts", "arrivals"}),
    "queued": ({"queued": 3}, {"arrivals"}),
    "classes": ({"classes": 3}, {"priorities"}),
}


@pytest.mark.parametrize(("changes", "moved"), CHANGES.values(), ids=CHANGES)
def test_changing_one_part_leaves_the_others_as_they_were(
    changes: dict[str, object], moved: set[str]
) -> None:
    parts: dict[str, Callable[[Workload], list]] = {
        "outputs": Workload.output_lengths,
        "prompts": Workload.prompt_lengths,
        "arrivals": Workload.unit_arrivals,
        "priorities": Workload.priorities,
    }
    changed = HEADLINE.with_(**changes)
    assert {name for name, part in parts.items() if part(changed) != part(HEADLINE)} == moved


def test_a_long_prompt_replaces_a_length_and_moves_no_other() -> None:
    pairs = zip(SHORT.prompt_lengths(), HEADLINE.prompt_lengths(), strict=False)
    assert all(long in (short, 256) for short, long in pairs)


def test_the_measured_step_and_the_load_only_scale_the_arrivals() -> None:
    unit = HEADLINE.unit_arrivals()
    for load, step in ((0.8, 0.04), (0.8, 0.1), (1.6, 0.04)):
        workload = HEADLINE.with_(load=load)
        rate = load * 8 / step / fmean(HEADLINE.output_lengths())
        requests = workload.requests(decode_step=step)
        assert [r.arrival_time for r in requests] == [time / rate for time in unit]
        assert [r.prompt_token_ids for r in requests] == [r.prompt_token_ids for r in HEADLINE.requests(1.0)]
        assert realised_load(requests, 8, step) == pytest.approx(load * 64 / unit[-1])


def test_realised_load_of_a_queue_is_infinite() -> None:
    assert realised_load(ZOMBIES.requests(), 8, 0.04) == math.inf


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrival_gaps_are_gamma_with_mean_one_and_variance_one_over_burstiness(burstiness: float) -> None:
    times = HEADLINE.with_(num_requests=4000, burstiness=burstiness).unit_arrivals()
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert fmean(gaps) == pytest.approx(1, abs=4 / math.sqrt(4000 * burstiness))
    assert pstdev(gaps) ** 2 * burstiness == pytest.approx(1, rel=0.2)
    assert min(gaps) >= 0


def test_poisson_gaps_are_exponential() -> None:
    times = HEADLINE.with_(num_requests=4000).unit_arrivals()
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    for t in (0.1, 0.7, 2.0):
        assert fmean(gap > t for gap in gaps) == pytest.approx(math.exp(-t), abs=0.03)


def test_lognormal_keeps_its_mean_before_clipping_and_clips_to_its_ends() -> None:
    wide = Lognormal(mean=65, sigma=0.8, low=1, high=10**6).draw(4000, random.Random(0))
    assert fmean(wide) == pytest.approx(65, rel=0.05)
    clipped = Lognormal(mean=65, sigma=0.8).draw(4000, random.Random(0))
    assert clipped == [min(max(length, 4), 160) for length in wide]
    assert (min(clipped), max(clipped)) == (4, 160)


@pytest.mark.parametrize("decode_step", [None, 0.0, -1.0, math.nan])
def test_a_workload_with_a_load_asks_for_a_decode_step(decode_step: float | None) -> None:
    with pytest.raises(ValueError, match=r"'headline' offers load 0\.8: give decode_step"):
        HEADLINE.requests(decode_step)


def test_a_queued_workload_needs_no_decode_step_and_has_no_rate() -> None:
    assert {request.arrival_time for request in ZOMBIES.requests()} == {0.0}
    with pytest.raises(ValueError, match="'zombies' has all requests queued"):
        ZOMBIES.request_rate(0.04)


# -- who is there first, classes, hints --------------------------------------------------------------


def test_queued_requests_are_there_at_the_start_and_the_others_arrive_as_if_alone() -> None:
    some = HEADLINE.with_(queued=10)
    assert some.unit_arrivals() == [0.0] * 10 + HEADLINE.unit_arrivals()[:54]


def test_long_ones_in_front_are_the_same_lengths_in_another_order() -> None:
    mixed, sorted_ = (Prompts(long_share=0.25, long_first=first) for first in (False, True))
    lengths, in_front = (one.draw(40, random.Random(3)) for one in (mixed, sorted_))
    assert in_front == [256] * 10 + [n for n in lengths if n != 256]


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classes_are_equally_many_in_places_that_the_seed_chooses(classes: int) -> None:
    draws = [HEADLINE.with_(num_requests=60, classes=classes, seed=seed).priorities() for seed in range(5)]
    assert {tuple(map(draw.count, range(classes))) for draw in draws} == {(60 // classes,) * classes}
    assert len(set(map(tuple, draws))) == (1 if classes == 1 else 5)


def test_a_guess_is_as_wrong_as_it_is_said_to_be_and_nothing_else_changes() -> None:
    requests = HEADLINE.with_(num_requests=2000).requests(0.03)
    assert guessed(requests, 0.0) == requests
    made = guessed(requests, 0.7)
    wrong = [abs(math.log(b.expected_tokens / a.max_tokens)) for a, b in zip(requests, made, strict=True)]
    assert fmean(error > math.log(2) for error in wrong) == pytest.approx(0.32, abs=0.05)
    assert min(r.expected_tokens for r in guessed(requests, 5.0)) == 1
    assert [r.max_tokens for r in made] == [r.max_tokens for r in requests]
    assert guessed(requests, 0.7) == made != guessed(requests, 0.7, seed=1)


@pytest.mark.parametrize("changes", [{"queued": -1}, {"queued": 65}, {"classes": 0}])
def test_a_workload_refuses_what_cannot_be_queued_or_classed(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"'headline': queued=.*give 0 to 64 requests that are queued"):
        HEADLINE.with_(**changes)


def test_guesses_need_a_hint_and_a_spread() -> None:
    (request,) = HEADLINE.with_(num_requests=1).requests(0.03)
    with pytest.raises(ValueError, match="sigma=-1: give the spread of the guesses"):
        guessed([request], -1)
    with pytest.raises(ValueError, match="'r0' has no expected_tokens"):
        guessed([Request("r0", (1,), 2)], 1.0)
