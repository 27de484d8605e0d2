"""What a reader may choose, and what the package says to a bad choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from llmserve import lab, settings
from llmserve.__main__ import main
from llmserve.models import load
from llmserve.settings import Settings, available_cores, cgroup_quota


def test_the_defaults_are_quick_and_on_the_cpu() -> None:
    assert Settings.from_env({}) == Settings("quick", "auto", "cpu", "float32", "auto", available_cores())


def test_every_choice_is_read() -> None:
    chosen = {"SCALE": "full", "WEIGHTS": "random", "DEVICE": "mps", "DTYPE": "float16"}
    chosen |= {"PRODUCTS": "packed", "THREADS": "3"}
    environ = {f"LLMSERVE_{name}": value for name, value in chosen.items()}
    assert Settings.from_env(environ) == Settings("full", "random", "mps", "float16", "packed", 3)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SCALE", "banana", "LLMSERVE_SCALE='banana': choose one of quick, full"),
        ("DEVICE", "tpu", "LLMSERVE_DEVICE='tpu'"),
        ("THREADS", "0", "LLMSERVE_THREADS='0': give a whole number"),
        ("THREADS", "-1", "LLMSERVE_THREADS='-1'"),
        ("THREADS", "two", "LLMSERVE_THREADS='two'"),
    ],
)
def test_a_bad_choice_names_itself_and_the_remedy(name: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings.from_env({f"LLMSERVE_{name}": value})


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
    ids=["v2", "v2 without a limit", "v1", "v1 without a limit", "no cgroups"],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (12.0, 8), (2.0, 2), (1.5, 1), (0.5, 1)])
def test_threads_are_what_the_container_grants(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(settings, "cgroup_quota", lambda: quota)
    assert Settings.from_env({}).threads == cores


def test_scale_decides_sizes_and_rounds() -> None:
    assert lab.Lab(Settings(weights="random")).pick(quick=1, full=2) == 1
    full = lab.Lab(Settings(scale="full", weights="random"))
    assert (full.pick(quick=1, full=2), full.rounds) == (2, 3)


def test_a_notebook_says_what_its_numbers_come_from() -> None:
    sentence = lab.Lab(Settings(weights="random", threads=2)).sentence
    assert "random weights" in sentence
    assert "2 threads;" in sentence
    assert "1 thread;" in lab.Lab(Settings(weights="random", threads=1)).sentence


def test_a_table_is_shown_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list = []
    monkeypatch.setattr(lab, "display", shown.append)
    columns = {"n": (1, 2), "share": ("{:.1f}", {"a": 0.25, "b": 0.5}), "gap": [None, "x"]}
    lab.show_table("What it is", columns)
    html = shown[0].data
    for piece in ("What it is", "<th", ">share<", ">0.2<", ">0.5<", ">–<", ">x<"):
        assert piece in html


def test_without_local_weights_auto_is_random_and_pretrained_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "local_folder", lambda: None)
    assert load.resolve_weights("auto") == "random"
    with pytest.raises(ValueError, match="python -m llmserve download"):
        load.resolve_weights("pretrained")


def test_a_download_without_a_connection_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(load, "local_folder", lambda: None)
    monkeypatch.setattr(httpx, "head", no_network)
    monkeypatch.setattr(sys, "argv", ["llmserve", "download"])
    assert main() == 1
    assert capsys.readouterr().err.startswith("download failed: no connection to")


def test_the_command_line_works_as_a_module() -> None:
    told = subprocess.run([sys.executable, "-m", "llmserve", "--help"], capture_output=True, text=True)
    assert told.returncode == 0
    assert "download" in told.stdout


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (None, "No guess was made; measured: 80 tokens/s"),
        (80.2, "Your guess was right"),
        (100, "100 tokens/s; measured: 80 tokens/s. 25% too high"),
        (20, "75% too low"),
    ],
)
def test_a_guess_is_held_against_the_measurement(guess: float | None, words: str) -> None:
    assert words in lab.how_far(guess, 80.0, "tokens/s").replace("**", "")


@pytest.mark.parametrize("guess", ["80", True, float("nan")])
def test_a_guess_that_is_no_number_is_named(guess: object) -> None:
    with pytest.raises(ValueError, match=r"GUESS = .*: give one number, in tokens/s"):
        lab.how_far(guess, 80.0, "tokens/s")
