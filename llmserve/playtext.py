"""What the playground says: a result's numbers as a table, what they rest on, one step in words.

The page and the widgets show the same rows and sentences. Standard library only: it also runs in a browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .loop import PolicyError
from .playground import simulate
from .recorded import record, recorded_on


def table(result: Mapping[str, Any]) -> list[list[str]]:
    """The numbers of a result as rows of text: what, A's, B's."""
    both = [run["metrics"] for run in result["runs"].values()]
    n = min(one["n"] for one in both)
    tail = "p99" if n >= 100 else "max"  # a p99 of fewer than 100 is their maximum
    rows = (
        ("tokens/s", "throughput", 1, ".0f"),
        ("goodput, tokens/s", "goodput_tokens", 1, ".0f"),
        ("goodput, requests/s", "goodput_requests", 1, ".2f"),
        (f"TTFT p50 (n = {n}), s", "ttft_p50", 1, ".2f"),
        (f"TTFT {tail} (n = {n}), s", "ttft_p99", 1, ".2f"),
        ("ITL p50, ms", "itl_p50", 1e3, ".0f"),
        ("ITL max, ms", "itl_max", 1e3, ".0f"),
        ("slot efficiency", "slot_efficiency", 1, ".2f"),
    )
    return [
        [label, *("–" if one[name] is None else f"{by * one[name]:{form}}" for one in both)]
        for label, name, by, form in rows
    ]


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What the numbers of a result rest on."""
    made, limits = record(), result["limits"]
    waiting = [_waiting_at(run, result["last_arrival"]) for run in result["runs"].values()]
    return [
        f"Simulated, with step times of {made['model']} on {recorded_on()}: "
        f"prices fitted to {made['fitted_to']}. "
        f"A decode step with every slot busy takes {1e3 * result['decode_step']:.1f} ms.",
        f"These arrivals offered a load of {result['realised_load']:.2f}. When the last request came, "
        f"{waiting[0]} waited with A and {waiting[1]} with B.",
        f"Goodput counts requests with a TTFT of at most {limits['ttft']:.2f} s and a TPOT of at most "
        f"{1e3 * limits['tpot']:.0f} ms: 25 and 3 such decode steps.",
        *result["notes"],
    ]


def _waiting_at(run: Mapping[str, Any], time: float) -> int:
    """How many waited as the first step from then on ended; 0 if there is none."""
    return next((waiting for end, waiting in run["queue"] if end >= time), 0)


def explain(result: Mapping[str, Any], side: str, number: int) -> dict[str, Any]:
    """One step in words: when it ran, who waits, and what each slot does."""
    steps = result["runs"][side]["steps"]
    step = steps[number]
    chunks = {chunk[0]: chunk for chunk in step["chunks"]}
    tokens = sum(chunk[4] for chunk in chunks.values())
    end = step["start"] + step["seconds"]
    return {
        "title": f"Step {number + 1} of {len(steps)}, {step['start']:.3f} s to {end:.3f} s",
        "work": f"It takes {1e3 * step['seconds']:.1f} ms, computes {tokens} "
        f"{'token' if tokens == 1 else 'tokens'} and gives {sum(chunk[5] for chunk in chunks.values())}.",
        "queue": step["queue"],
        "slots": [
            [str(place), request or "", *_words(result["requests"], request, chunks.get(place))]
            for place, request in enumerate(step["slots"])
        ],
    }


def _words(requests: Mapping[str, Any], request: str | None, chunk: list[Any] | None) -> tuple[str, str]:
    """What a slot does in a step: its kind, and a sentence."""
    if request is None:
        return "empty", "empty"
    if chunk is None:
        return "waits", "waits: not in this step"
    _, _, kind, start, tokens, kept = chunk
    _, prompt, output = requests[request]
    if kind == "zombie":
        return kind, "zombie row: done, and computed again"
    if kind == "decode":
        return kind, f"output token {start - prompt + 2} of {output}"
    more = "; gives the first output token" if kept else ""
    return kind, f"prompt tokens {start + 1} to {start + tokens} of {prompt}{more}"


@lru_cache(maxsize=4)
def _simulated(settings: str) -> dict[str, Any]:
    return simulate(json.loads(settings))


def answer(message: str) -> str:
    """What the page's worker calls, in JSON: {"settings": ...}, and "side" and "step" to have one explained.

    Back comes a result with its table and sentences, or a step in words, or {"error": words}.
    """
    asked = json.loads(message)
    try:
        result = _simulated(json.dumps(asked["settings"], sort_keys=True))
    except (ValueError, PolicyError) as error:
        return json.dumps({"error": str(error)})
    if "step" in asked:
        return json.dumps({"step": explain(result, asked["side"], asked["step"])})
    return json.dumps({"result": result, "table": table(result), "sentences": sentences(result)})
