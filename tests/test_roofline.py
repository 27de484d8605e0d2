"""Floors and limits, against numbers worked by hand and against the real model's weights."""

from __future__ import annotations

import math

import pytest
from helpers.tiny import tiny_model

from llmserve.models.gpt2 import Config
from llmserve.roofline import LLM, Peak, StepWork, gpus, llms, sequences_that_fit
from llmserve.run import ChunkRow, Step

GPT2_SMALL = StepWork.of(Config())


def test_gpt2_smalls_step_reads_the_weights_that_the_model_multiplies_by() -> None:
    assert GPT2_SMALL.body_weights == 84_934_656
    assert GPT2_SMALL.vocabulary_weights == 38_597_376
    assert GPT2_SMALL.weight_bytes == pytest.approx(494.1e6, rel=1e-3)
    assert GPT2_SMALL.kv_bytes_per_token == 73_728


def test_the_counted_weights_are_those_of_a_model() -> None:
    model = tiny_model()
    products = [getattr(b, n) for b in model.blocks for n in ("qkv", "attention_out", "mlp_up", "mlp_down")]
    work = StepWork.of(model.config)
    assert work.body_weights == sum(product.weight.numel() for product in products)
    assert work.vocabulary_weights == model.vocabulary.weight.numel()


def test_a_floor_is_the_longer_of_reading_and_computing() -> None:
    work = StepWork(body_weights=80, vocabulary_weights=20, kv_bytes_per_token=8, attention_flops=4)
    peak = Peak(bandwidth=100.0, flops=1000.0)
    assert (work.bytes(1, 5), work.flops(1, 5)) == (440, 220)
    assert work.floor(peak, 1, 5) == 4.4  # 440 bytes at 100 a second
    assert work.floor(peak, 50, 0) == 50 * 200 / 1000  # 10 s of arithmetic, 4 of reading
    assert work.mbu(peak, 1, 5, seconds=8.8) == pytest.approx(0.5)
    assert work.mfu(peak, 1, 5, seconds=0.44) == pytest.approx(0.5)


def test_a_runs_utilisation_counts_what_each_step_had_to_read_and_do() -> None:
    work = StepWork(body_weights=80, vocabulary_weights=20, kv_bytes_per_token=8, attention_flops=4)
    inside = Step(0.0, 2.0, None, 0, 0, 0, [ChunkRow("a", 0, 2, 3, "prefill", None)])
    both = [ChunkRow("b", 1, 4, 1, "decode", 9), ChunkRow("a", 0, 5, 2, "prefill", 7)]
    last = Step(2.0, 3.0, None, 0, 0, 0, both)
    peak = Peak(bandwidth=100.0, flops=1000.0)
    # no next token is due: the vocabulary weights are not read
    read, done = 80 * 4 + 5 * 8, 2 * 80 * 3 + 4 * (3 + 4 + 5)
    assert work.utilisation(peak, [inside]) == pytest.approx((read / 200, done / 2000))
    # b reads 5 tokens and a 7; three tokens through the layers, two rows
    read, done = read + 100 * 4 + (5 + 7) * 8, done + 2 * (80 * 3 + 20 * 2) + 4 * (5 + 6 + 7)
    assert work.utilisation(peak, [inside, last]) == pytest.approx((read / 500, done / 5000))


def test_a_decode_steps_utilisation_is_that_of_a_batch_with_its_context() -> None:
    chunks = [ChunkRow(f"r{place}", place, 127, 1, "decode", 5) for place in range(8)]
    peak, step = Peak(30e9, 200e9), Step(0.0, 0.05, None, 0, 0, 0, chunks)
    expected = (GPT2_SMALL.mbu(peak, 8, 128, 0.05), GPT2_SMALL.mfu(peak, 8, 128, 0.05))
    assert GPT2_SMALL.utilisation(peak, [step]) == pytest.approx(expected)


def test_at_the_crossing_reading_and_computing_take_the_same_time() -> None:
    peak = Peak(bandwidth=30e9, flops=200e9)
    batch = GPT2_SMALL.crossing(peak, context=128)
    reading, computing = GPT2_SMALL.bytes(batch, 128) / 30e9, GPT2_SMALL.flops(batch, 128) / 200e9
    assert reading == pytest.approx(computing)
    assert math.isinf(GPT2_SMALL.crossing(Peak(bandwidth=30e9, flops=1e15), context=128))


def test_a_prefill_attends_to_every_pair_once_and_projects_its_last_row() -> None:
    work = StepWork(body_weights=10, vocabulary_weights=7, kv_bytes_per_token=0, attention_flops=100)
    assert work.prefill_flops(prompts=2, length=3) == 2 * (3 * 2 * 10 + 2 * 7 + 100 * (1 + 2 + 3))
    assert work.prefill_flops(1, 1) == work.flops(1, 1)


def test_a_ridge_in_rows_counts_two_operations_a_weight() -> None:
    assert Peak(bandwidth=1.0, flops=20.0).ridge_rows(bytes_per_weight=4) == 40
    assert Peak(bandwidth=1.0, flops=20.0).ridge_rows(bytes_per_weight=2) == 20


def test_sequences_fit_in_what_the_weights_leave() -> None:
    model = LLM("toy", weights_billion=1.0, layers=1, kv_heads=1, head_dim=250)  # 1 kB a token
    gpu = next(iter(gpus().values()))
    free = 0.9 * gpu.memory_gb * 1e9 - 2e9
    assert sequences_that_fit(gpu, model, context=1000) == int(free // 1e6)
    assert sequences_that_fit(gpu, LLM("vast", 1000.0, 1, 1, 1), context=1) == 0


def test_a_known_models_kv_cache() -> None:
    assert llms()["Llama-2-7B"].kv_bytes_per_token() == 524_288
    assert llms()["Llama-3-8B"].kv_bytes_per_token() == 131_072
