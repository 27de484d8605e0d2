"""The command line: what it prints, writes and returns, and one sentence for a bad argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmserve import commands, doctor
from llmserve.__main__ import main
from llmserve.doctor import Finding
from llmserve.policies import Bucketed, Chunked, Continuous, Dynamic, Mixed, ShortestRemaining, Static

CSV = "arrival,prompt_tokens,output_tokens\n0,20,5\n0.1,2000,9\n0.1,30,4\n"


def raced(*arguments: str) -> int:
    return main(["race", *arguments])


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    return path


def test_a_race_prints_a_row_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert raced("--policies", "static:4, chunked:4:32", "--workload", "zombies", "--requests", "12") == 0
    note, head, *rows = capsys.readouterr().out.splitlines()
    assert note.startswith("Simulated at the prices of a machine") and "12 requests" in note
    assert head.startswith("policy") and "TTFT max (n = 12), s" in head
    assert [row.split("  ")[0] for row in rows] == ["Static(4)", "Chunked(4, 32)"]


def test_without_arguments_every_policy_races_on_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    assert raced() == 0
    out = capsys.readouterr().out
    assert "64 requests, realised load" in out
    assert [line.split("(")[0] for line in out.splitlines()[2:]] == [
        "Static", "Dynamic", "Bucketed", "Continuous", "Mixed", "Chunked", "ShortestRemaining",
    ]  # fmt: skip


def test_your_own_traffic_races_and_is_scaled_to_a_window(
    traffic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raced("--policies", "continuous:2", "--csv", str(traffic)) == 0
    whole = capsys.readouterr().out
    assert "3 requests" in whole and "×" not in whole
    assert raced("--policies", "continuous:2", "--csv", str(traffic), "--max-model-len", "1024") == 0
    assert "All lengths × 0.510, so that the longest request fits 1024 tokens." in capsys.readouterr().out


def test_each_run_is_written_as_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert raced("--policies", "static:4,chunked:4:32", "--requests", "6", "--trace", str(folder)) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["chunked-4-32.json", "static-4.json"]
    assert json.loads((folder / "static-4.json").read_text())["traceEvents"]
    assert f"2 traces in {folder}" in capsys.readouterr().out


def test_a_policy_that_broke_makes_the_command_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert raced("--policies", "static:2", "--workload", "zombies", "--max-model-len", "10") == 1
    assert "every request was refused; request 'r0'" in capsys.readouterr().out


BAD = {
    "engine": (["--engine", "fast"], "--engine fast: choose one of simulated, real"),
    "policy": (["--policies", "statik:8"], "no policy 'statik:8'; write one of static:SLOTS, dynamic:SLOTS:"),
    "no number": (["--policies", "static:many"], "'static:many' must look like static:SLOTS"),
    "too few numbers": (["--policies", "chunked:8"], "must look like chunked:SLOTS:TOKENS_A_STEP"),
    "too many numbers": (["--policies", "static:8:9"], "'static:8:9' must look like static:SLOTS"),
    "a policy's own limit": (["--policies", "chunked:8:4"], "max_num_batched_tokens=4: give a whole number"),
    "a comma too many": (["--policies", "static:8,"], "no policy ''"),
    "workload": (["--workload", "mine"], "--workload mine: choose one of zombies, headline"),
    "requests": (["--requests", "0"], "--requests 0: give a whole number, 1 or more"),
    "window": (["--max-model-len", "1"], "--max-model-len 1: give a whole number, 2 or more"),
    "file": (["--csv", "none.csv"], "--csv none.csv: No such file or directory; give a file"),
    "a real window": (["--engine", "real", "--max-model-len", "4096"], "GPT-2 knows 1024 positions"),
    "trace": (["--trace", "{file}"], "give a folder that can be made"),
    "bad rows": (["--csv", "{bad}"], "line 2: arrival='x' is not a number of seconds"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_a_bad_argument_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, traffic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = traffic.with_name("bad.csv")
    bad.write_text(CSV.replace("0,20", "x,20"))
    assert raced(*[one.format(file=traffic, bad=bad) for one in arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out


@pytest.mark.parametrize("arguments", [[], ["walk"], ["race", "--csv", "a", "--workload", "headline"]])
def test_what_is_no_command_is_told_by_the_parser(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_a_bad_setting_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSERVE_DEVICE", "tpu")
    assert raced("--engine", "real") == 2
    assert "LLMSERVE_DEVICE='tpu': choose one of" in capsys.readouterr().err


def test_every_policy_has_a_form() -> None:
    found = commands.read_policies(commands.ALL)
    kinds = [Static, Dynamic, Bucketed, Continuous, Mixed, Chunked, ShortestRemaining]
    assert [type(policy) for policy in found] == kinds
    assert (found[1].max_wait, found[5].max_num_batched_tokens, found[6].tokens_per_step) == (0.3, 64, 32)
    assert len(found) == len(commands.FORMS)


@pytest.mark.parametrize(("label", "name"), [("Chunked(8, 64)", "chunked-8-64"), ("../(é)", "run")])
def test_a_label_becomes_a_file_name(label: str, name: str) -> None:
    assert commands.file_name(label) == name


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_doctor_fails_only_where_the_book_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    found = [Finding("python", "ok", "3.12"), Finding("weights", state, "none here", "fetch them")]
    monkeypatch.setattr(commands, "examine", lambda: iter(found))
    assert main(["doctor"]) == code
    first, second, remedy = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "python", "3.12"]
    assert second.split() == [state, "weights", "none", "here"] and remedy.strip() == "fetch them"


def test_this_machine_is_examined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "measure_noise", lambda: ([0.01] * 20, 1.0))
    assert main(["doctor"]) in (0, 1)
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert {"python", "threads", "quota", "memory", "noise", "versions", "weights"} <= set(names)
