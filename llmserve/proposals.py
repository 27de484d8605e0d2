"""What is wrong with a policy's answer, in plain words; None if it can be done."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from .request import Sequence


def wrong_members(chosen: Any, allowed: Seq[Sequence], method: str, where: str) -> str | None:
    """`chosen` must be a list of sequences out of `allowed`, each once."""
    if not isinstance(chosen, list | tuple):
        return f"{method} returned {chosen!r:.60}; return a list of sequences, [] for none"
    for one in chosen:
        if not isinstance(one, Sequence):
            return f"{method} named {one!r:.60}, which is no sequence; name those it was given"
    if not chosen or (len(set(chosen)) == len(chosen) and set(allowed).issuperset(chosen)):
        return None
    for i, sequence in enumerate(chosen):
        if sequence not in allowed:
            return f"{method} named {sequence.id!r}, which is not in {where}"
        if sequence in chosen[:i]:
            return f"{method} named {sequence.id!r} twice"
    return None


def wrong_plan(plan: Any, running: Seq[Sequence], budget: int | None) -> str | None:
    """`plan` must be (sequence, tokens) pairs: no more than each needs and the budget has."""
    if not isinstance(plan, list | tuple) or any(not isinstance(x, tuple) or len(x) != 2 for x in plan):
        return f"compose returned {plan!r:.60}; return a list of (sequence, number of tokens) pairs"
    wrong = wrong_members([sequence for sequence, _ in plan], running, "compose", "the running batch")
    if wrong:
        return wrong
    for sequence, tokens in plan:
        most = 1 if sequence.is_finished else sequence.num_uncomputed_tokens
        if not isinstance(tokens, int) or not 1 <= tokens <= most:
            return f"compose gave {sequence.id!r} {tokens!r} tokens; it can take a whole number, 1 to {most}"
    total = sum([tokens for _, tokens in plan])
    if budget is not None and total > budget:
        return f"compose planned {total} tokens, over max_num_batched_tokens={budget}"
    return None


def wrong_timer(seconds: Any) -> str | None:
    if isinstance(seconds, int | float) and seconds == seconds:
        return None
    return f"wake_at returned {seconds!r:.60}; return seconds, math.inf for never"
