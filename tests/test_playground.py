"""The playground's numbers are serve's and metrics', its steps are the log's, and a bad setting is told."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from llmserve.costmodel import SimulatedEngine
from llmserve.loop import serve
from llmserve.metrics import SLO, summarise
from llmserve.playground import CONTROLS, POLICIES, complete, play, simulate, states
from llmserve.playtext import answer, explain, sentences, table
from llmserve.policies import Chunked, Static
from llmserve.recorded import recorded_cost
from llmserve.workload import HEADLINE

FEW = {"requests": 16}


def test_the_numbers_are_those_of_serve_and_summarise() -> None:
    step = recorded_cost().full_decode_step(8)
    requests = HEADLINE.with_(num_requests=48, load=1.2, seed=5).requests(step)
    engine = SimulatedEngine(8, HEADLINE.max_model_len, recorded_cost())
    result = simulate({"load": 1.2, "seed": 5, "policy_b": "Chunked"})
    assert result["decode_step"] == step
    for side, policy in (("A", Static(8)), ("B", Chunked(8, 128))):
        expected = asdict(summarise(serve(requests, policy, engine), SLO.relative(step)))
        expected = {name: None if math.isnan(value) else value for name, value in expected.items()}
        assert result["runs"][side]["metrics"] == expected
        assert result["runs"][side]["policy"] == repr(policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plays_and_json_holds_all_of_it(policy: str) -> None:
    result = simulate({**FEW, "policy_a": policy, "policy_b": "Static"})
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["runs"]["A"]["metrics"]["n"] == 16
    assert len(table(result)) == 8 and all(sentences(result))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_steps_tell_who_waits_and_who_sits_where(policy: str) -> None:
    run = play({**FEW, "policy_a": policy, "load": 1.5, "slots": 4})["A"]
    for step, waiting, slots in states(run):
        for chunk in step.chunks:
            assert slots[chunk.place] == chunk.request_id
        assert len(set(waiting)) == len(waiting) and not set(waiting) & set(slots.values())
        arrived = [r.id for r in run.submitted if r.arrival_time <= step.start]
        ended = [e.request_id for e in run.events if e.kind == "finish" and e.time <= step.start]
        assert set(arrived) == {*waiting, *slots.values(), *ended}
        came_meanwhile = sum(step.start < r.arrival_time <= step.end for r in run.submitted)
        assert len(waiting) + came_meanwhile == step.num_waiting


def test_a_step_in_words() -> None:
    result = simulate({**FEW, "slots": 2, "policy_b": "Chunked", "budget": 8, "seed": 2})
    told = [explain(result, side, n) for side in "AB" for n in range(len(result["runs"][side]["steps"]))]
    said = {words.split(" ")[0] for one in told for _, _, _, words in one["slots"]}
    assert {"prompt", "output", "zombie", "empty"} <= said
    first = explain(result, "B", 0)
    assert first["title"].startswith("Step 1 of")
    assert (
        first["slots"][0][:3] == ["0", "r0", "prefill"] and "prompt tokens 1 to 8 of" in first["slots"][0][3]
    )


def test_the_last_output_token_is_counted_as_the_last() -> None:
    result = simulate(FEW)
    last = {}
    for number in range(len(result["runs"]["B"]["steps"])):
        for _, request, kind, words in explain(result, "B", number)["slots"]:
            if kind == "decode":
                last[request] = words
    for request, words in last.items():
        output = result["requests"][request][2]
        assert words == f"output token {output} of {output}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"load": 0}, "Load: 0 will not do; give a number from 0.1 to 3.0"),
        ({"load": math.nan}, "Load: nan"),
        ({"load": "much"}, "Load: 'much'"),
        ({"load": True}, "Load: True"),
        ({"slots": 2.5}, "Slots: 2.5 will not do; give a whole number from 1 to 16"),
        ({"requests": None}, "Requests: None will not do; give a whole number from 8 to 128"),
        ({"max_wait": -1}, r"Longest wait for a batch \(s\): -1 will not do; give a number from 0.0 to 10.0"),
        ({"policy_a": "Clever"}, "policy_a='Clever': choose one of Static, Dynamic"),
        ({"policy_b": ["Static"]}, "choose one of Static"),
        ({"speed": 3}, "there is no setting 'speed'; there are load, sigma"),
        ({"slots": 16, "budget": 8, "policy_b": "Chunked"}, "max_num_batched_tokens=8"),
    ],
)
def test_a_bad_setting_names_value_limit_and_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(settings)


@pytest.mark.parametrize("end", ["low", "high"])
def test_every_control_works_at_both_ends(end: str) -> None:
    for control in CONTROLS:
        others = {**FEW, "policy_a": "Dynamic", "policy_b": "Chunked", "budget": 64}
        simulate(
            {
                **others,
                control.name: getattr(control, end),
                **({"slots": 8} if control.name == "budget" else {}),
            }
        )


def test_the_worker_gets_answers_in_json() -> None:
    settings = {**FEW, "seed": 4}
    whole = json.loads(answer(json.dumps({"settings": settings})))
    assert whole["result"] == simulate(settings)
    assert whole["table"] == table(whole["result"]) and whole["sentences"] == sentences(whole["result"])
    one = json.loads(answer(json.dumps({"settings": settings, "side": "B", "step": 3})))
    assert one == {"step": explain(whole["result"], "B", 3)}
    bad = json.loads(answer(json.dumps({"settings": {"load": 9}})))
    assert bad == {"error": "Load: 9 will not do; give a number from 0.1 to 3.0"}


def test_what_is_missing_gets_its_default() -> None:
    values = complete({"slots": 4})
    assert values["slots"] == 4 and values["policy_a"] == "Static" and values["policy_b"] == "Continuous"
    assert values["load"] == 0.8


def test_the_widgets_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmserve.widgets import Playground

    kit = pytest.importorskip("ipywidgets")
    made = Playground(complete(FEW), kit)
    assert made.result == simulate(FEW)
    assert bytes(made.picture.value).startswith(b"\x89PNG")
    for _, a, b in table(made.result):
        assert a in made.numbers.value and b in made.numbers.value
    made.step.value = 5
    assert explain(made.result, "A", 5)["title"] in made.words.value
    made.controls["policy_b"].value = "Chunked"
    assert made.result["runs"]["B"]["policy"].startswith("Chunked")
    made.controls["slots"].value, made.controls["budget"].value = 16, 8
    assert "max_num_batched_tokens=8" in made.numbers.value
