"""The recorded race against other engines: what is read from it and computed on it."""

from __future__ import annotations

import pytest

from llmserve import beside, plots
from llmserve.beside import Race, Racer
from llmserve.models.gpt2 import Config
from llmserve.roofline import Peak, StepWork
from llmserve.workload import Lognormal, Prompts, Workload

TWO = Workload("two", 2, 2, 16, Lognormal(mean=5, sigma=0.0), Prompts(low=3, high=3))

ANY = Peak(1e9, 1e9)


def racer(engine: str, *rates: float) -> Racer:
    return Racer(engine, engine, list(rates), [1.0] * len(rates), [False] * len(rates), 0, 9, 2, 2, 10**9, {})


def a_race(peak: Peak) -> Race:
    racers = [
        racer("llmserve", 9.0, 8.0, 30.0),
        racer("A 1.2-34-abc, own cap", 5.0),
        racer("B", 4.0, 7.0, 6.0),
    ]
    return Race({}, "2026-01-01", TWO, peak, racers)


def test_the_fastest_of_the_others_is_by_median_and_not_ours() -> None:
    race = a_race(ANY)
    assert race.fastest.name == "B" and race.fastest.rate == 6.0
    assert race["llmserve"].rate == 9.0 and race["llmserve"].is_ours


def test_a_label_has_no_build_number() -> None:
    assert a_race(ANY).racers[1].label == "A 1.2, own cap"


def test_the_limit_is_prompts_computed_and_weights_read() -> None:
    work = StepWork(10, 5, kv_bytes_per_token=0, attention_flops=0)
    # Prompts: 2 x 3 tokens x 10 weights x 2 FLOP, and a vocabulary row each, 2 x 5 x 2: 140 FLOP.
    # Outputs: 10 tokens, 2 of them the prompts'; 8 rows, 2 a step, 60 bytes a step.
    race = a_race(Peak(bandwidth=60.0, flops=70.0))
    assert race.most_tokens_per_second(work) == pytest.approx(10 / (140 / 70 + 4 * 60 / 60))


def test_the_race_that_comes_with_the_package_kept_its_rules() -> None:
    race = beside.recorded()
    assert race.workload.name == "engines" and len(race.racers) > 1
    for one in race.racers:
        assert len(one.tokens_per_second) >= 3
        assert one.most_at_once is None or one.most_at_once <= race.workload.max_num_seqs, one.name
        assert one.same_requests <= race.workload.num_requests
    limit = race.most_tokens_per_second(StepWork.of(Config()))
    assert len(plots.engine_rates(race, limit).axes[0].get_yticklabels()) == len(race.racers)
