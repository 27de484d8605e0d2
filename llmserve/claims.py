"""A sentence of the book, checked against the numbers it is about, and kept in its cell's output."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .posts import register

MIME = "application/vnd.llmserve.claim+json"
MUST_HOLD = ("schedule", "arithmetic")
KINDS = (*MUST_HOLD, "timing")
SIGNS = {"held": "✓", "did not hold here": "✗", "too close to call": "≈"}


class ClaimError(AssertionError):
    """A claim that no clock can change came out false."""


@dataclass(frozen=True)
class Claim:
    """id, the sentence with this run's numbers, its kind, the verdict, and the values behind it."""

    id: str
    sentence: str
    kind: str
    verdict: str
    values: dict[str, Any] = field(default_factory=dict)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        sign = SIGNS[self.verdict.removesuffix(" (one round only)")]
        markdown = f"{sign} **{self.id}, {self.verdict}.** {self.sentence}"
        return {"text/markdown": markdown, "text/plain": markdown, MIME: asdict(self)}


def must_hold(id: str, sentence: str, holds: bool, kind: str | None = None, **values: Any) -> None:
    """Show a claim that follows from the schedule or from arithmetic; ClaimError if it is false."""
    kind = _kind(id, kind)
    if kind not in MUST_HOLD:
        raise ValueError(f"claim {id} is about timing: use timing(...), which a slow minute cannot fail")
    claim = _show(Claim(id, sentence, kind, "held" if holds else "did not hold here", _plain(values)))
    if not holds:
        raise ClaimError(f"claim {id} must hold on any machine, but: {sentence} ({claim.values})")


def timing(
    id: str,
    sentence: str,
    larger: list[float],
    smaller: list[float],
    kind: str | None = None,
    **values: Any,
) -> None:
    """Show a claim about time: that the readings `larger` exceed the readings `smaller`, a round each.

    held, did not hold here, or too close to call (the two ranges overlap); with a single round the
    ranges say nothing, and the verdict says so. Never raises.
    """
    kind = _kind(id, kind)
    if len(larger) == len(smaller) == 1:
        verdict = ("held" if larger[0] > smaller[0] else "did not hold here") + " (one round only)"
    elif min(larger) > max(smaller):
        verdict = "held"
    elif max(larger) < min(smaller):
        verdict = "did not hold here"
    else:
        verdict = "too close to call"
    _show(Claim(id, sentence, kind, verdict, _plain({"larger": larger, "smaller": smaller, **values})))


def _kind(id: str, kind: str | None) -> str:
    known = register().get(id)
    if kind is None and known is None:
        raise ValueError(f"claim {id!r} is not in the register: give kind= one of {', '.join(KINDS)}")
    kind = kind or known.kind
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    return kind


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """NumPy and pandas scalars as plain numbers, so that the values travel as JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): plain(inner) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(inner) for inner in value]
        return value.item() if hasattr(value, "item") else value

    return plain(values)


def _show(claim: Claim) -> Claim:
    from IPython.display import display

    display(claim)
    return claim
