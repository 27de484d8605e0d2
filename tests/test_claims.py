"""A claim that no clock can change must hold; one about time says what came out, and never fails."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmserve.claims import MIME, Claim, ClaimError, must_hold, timing
from llmserve.posts import register, table


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """The claims that a cell would have displayed."""
    displayed: list[Claim] = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    return displayed


def test_a_schedule_claim_that_is_false_is_shown_and_then_raises(shown: list[Claim]) -> None:
    with pytest.raises(ClaimError, match=r"S1 must hold.*because of 0\.4"):
        must_hold("S1", "because of 0.4", False, share=0.4)
    assert [claim.verdict for claim in shown] == ["did not hold here"]


def test_a_claim_about_time_may_not_be_made_to_hold(shown: list[Claim]) -> None:
    with pytest.raises(ValueError, match="S4 is about timing"):
        must_hold("S4", "faster", True)
    assert not shown


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict"),
    [
        ([5.0, 6.0], [3.0, 4.0], "held"),
        ([3.0, 4.0], [5.0, 6.0], "did not hold here"),
        ([3.0, 5.5], [5.0, 6.0], "too close to call"),
        ([5.0, 5.0], [5.0, 5.0], "too close to call"),
        ([6.0], [5.0], "held (one round only)"),
        ([5.0], [6.0], "did not hold here (one round only)"),
    ],
)
def test_a_timing_verdict_looks_at_the_ranges(
    shown: list[Claim], larger: list[float], smaller: list[float], verdict: str
) -> None:
    timing("S4", "falls", larger, smaller)
    assert [claim.verdict for claim in shown] == [verdict]


def test_a_claim_travels_as_json_beside_its_sentence(shown: list[Claim]) -> None:
    values = {0.4: np.float64(0.5), "rows": (np.int64(3), 4)}
    must_hold("S3", "as computed", True, live=values)
    bundle = shown[0]._repr_mimebundle_()
    assert bundle["text/markdown"] == "✓ **S3, held.** as computed"
    travelled = json.loads(json.dumps(bundle[MIME]))
    assert travelled["values"] == {"live": {"0.4": 0.5, "rows": [3, 4]}}
    assert (travelled["id"], travelled["kind"], travelled["verdict"]) == ("S3", "schedule", "held")


def test_a_claim_outside_the_register_must_say_its_kind(shown: list[Claim]) -> None:
    with pytest.raises(ValueError, match="'N1' is not in the register"):
        must_hold("N1", "new", True)
    with pytest.raises(ValueError, match="kind='hunch'"):
        must_hold("N1", "new", True, kind="hunch")
    must_hold("N1", "new", True, kind="schedule")
    assert [claim.kind for claim in shown] == ["schedule"]


def test_the_register_has_every_claim_of_the_posts_once() -> None:
    claims = register()
    assert len(claims) == 70
    assert {claim.kind for claim in claims.values()} == {"schedule", "timing", "arithmetic"}
    assert claims["S1"].post == "1.00 .59 .41 .33 at sigma 0 .4 .8 1.2"


def test_the_posts_tables_are_by_name_and_an_unknown_one_says_which_there_are() -> None:
    assert list(table("static").efficiency) == [1.00, 0.59, 0.41, 0.33]
    with pytest.raises(ValueError, match=r"no table 'statics'.*static"):
        table("statics")
