"""What the doctor finds: a state, what it saw, and a remedy where something is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmserve import doctor
from llmserve.doctor import Finding
from llmserve.models import linear, load

ALL_THERE = {name: "1.0" for name in doctor.NEEDED}

FOUND = {
    "python new enough": (doctor.python((3, 12)), "ok", "3.12", ""),
    "python too old": (doctor.python((3, 9)), "fail", "3.9, older than 3.11", "install Python 3.11"),
    "threads": (doctor.threads(2, 2, 8), "ok", "2 of torch on 2 usable cores (8 in the machine)", ""),
    "too many threads": (doctor.threads(8, 2, 8), "warn", "8 of torch on 2", "or set it to 2"),
    "no quota": (doctor.quota(None, 8), "ok", "no CPU limit", ""),
    "a quota": (doctor.quota(1.5, 8), "ok", "may use 1.5 of 8 CPUs", ""),
    "half a CPU": (doctor.quota(0.5, 8), "warn", "may use 0.5 of 8 CPUs", "at least one CPU"),
    "memory": (doctor.memory(4e9), "ok", "4.0 GB free, a chapter needs 1.6 GB", ""),
    "little memory": (doctor.memory(1.5e9), "warn", "1.5 GB free", "close other programs"),
    "memory unknown": (doctor.memory(None), "warn", "does not say", ""),
    "quiet": (doctor.noise([0.010] * 19 + [0.030], 0.99), "ok", "median 10.0 ms, 10.0 to 30.0", ""),
    "noisy": (doctor.noise([0.010] * 18 + [0.030] * 2, 0.99), "warn", "3.00 × the median", "close it"),
    "shared": (doctor.noise([0.010] * 20, 0.6), "warn", "60% of the time on the CPU", "close it"),
    "as pinned": (doctor.versions({"torch": "1.0"}, ALL_THERE.get), "ok", "all 1 packages as pinned", ""),
    "a local build": (
        doctor.versions({"torch": "1.0"}, (ALL_THERE | {"torch": "1.0+cpu"}).get), "ok", "as pinned", "",
    ),
    "another version": (
        doctor.versions({"torch": "2.0", "numpy": "1.0"}, ALL_THERE.get), "warn", "torch 1.0 (pinned 2.0)",
        "pip install -r requirements.txt",
    ),
    "an extra is missing": (
        doctor.versions({"jupyterlab": "4.0"}, ALL_THERE.get), "warn", "jupyterlab missing (pinned 4.0)",
        "pip",
    ),
    "no pins": (doctor.versions(None, ALL_THERE.get), "ok", "no requirements.txt at hand", ""),
    "nothing there": (doctor.versions({}, {}.get), "fail", "not installed: torch, transf", "pip install"),
}  # fmt: skip


@pytest.mark.parametrize(("finding", "state", "says", "remedy"), FOUND.values(), ids=FOUND)
def test_a_finding_has_a_state_and_a_remedy_if_it_needs_one(
    finding: Finding, state: str, says: str, remedy: str
) -> None:
    assert finding.state == state
    assert says in finding.says and remedy in finding.remedy
    assert state == "ok" or finding.remedy or "does not say" in says


def test_many_other_versions_are_not_all_listed() -> None:
    other = doctor.versions({f"p{i}": "1" for i in range(9)}, lambda name: "2")
    assert other.says.count("pinned") == doctor.MOST_SHOWN and other.says.endswith("and 3 more")


def test_pins_are_read_from_a_file_with_comments_and_options(tmp_path: Path) -> None:
    text = "# what\n-c constraints.txt\ntorch==2.1.0  # why\nnumpy==2.0;python_version>'3'\nloose>=1\n"
    (tmp_path / "requirements.txt").write_text(text)
    assert doctor.pins((tmp_path / "none", tmp_path)) == {"torch": "2.1.0", "numpy": "2.0"}
    assert doctor.pins((tmp_path / "none",)) is None


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert doctor.installed("no-such-package-as-this") is None
    assert doctor.installed("torch")


@pytest.mark.parametrize(
    ("local", "choice", "state"),
    [(True, "auto", "ok"), (False, "auto", "warn"), (False, "random", "ok"), (False, "pretrained", "fail")],
)
def test_weights_are_found_or_the_download_is_named(
    monkeypatch: pytest.MonkeyPatch, local: bool, choice: str, state: str
) -> None:
    monkeypatch.setattr(load, "local_folder", lambda: Path() if local else None)
    found = doctor.weights(choice)
    assert found.state == state
    assert local or "python -m llmserve download" in found.remedy


@pytest.mark.parametrize(("products", "state"), [("auto", "warn"), ("streamed", "fail")])
def test_without_a_compiler_only_streamed_products_are_impossible(
    monkeypatch: pytest.MonkeyPatch, products: str, state: str
) -> None:
    monkeypatch.setattr(linear, "why_not_streamed", lambda *_: "no C compiler was found")
    found = doctor.streamed(products)
    assert (found.state, found.says) == (state, "no C compiler was found")
    monkeypatch.setattr(linear, "why_not_streamed", lambda *_: None)
    assert doctor.streamed(products).state == "ok"


def test_a_device_that_is_not_there_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert (doctor.device("cpu").state, doctor.device("mps").state) == ("ok", "fail")


def test_noise_is_measured_in_seconds_and_a_share() -> None:
    seconds, share = doctor.measure_noise(timings=5, size=2**16)
    assert len(seconds) == 5 and min(seconds) > 0 and share >= 0


def test_free_memory_is_some_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.free_bytes()
    assert found is None or found > 0
    monkeypatch.setattr(doctor, "_free_in_machine", lambda: 4.0)
    monkeypatch.setattr(doctor, "_left_in_container", lambda: 3.0)
    assert doctor.free_bytes() == 3.0
    monkeypatch.setattr(doctor, "_left_in_container", lambda: None)
    assert doctor.free_bytes() == 4.0


def test_a_bad_setting_is_a_finding_and_the_rest_is_still_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure_noise", lambda: ([0.01] * 20, 1.0))
    monkeypatch.setattr(linear, "why_not_streamed", lambda *_: None)
    found = {finding.name: finding for finding in doctor.examine({"LLMSERVE_SCALE": "banana"})}
    assert found["settings"].state == "fail" and "choose one of quick, full" in found["settings"].says
    assert list(found) == [
        "settings", "python", "threads", "quota", "memory", "noise", "versions", "weights", "device",
        "compiler",
    ]  # fmt: skip
