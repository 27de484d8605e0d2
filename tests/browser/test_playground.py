"""The playground in a real browser: it runs the package itself, follows its controls, steps through."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmserve.playground import simulate
from llmserve.playtext import explain, table

from .conftest import ROOT, Complaints, missing

PAGE = "book/playground.html"
LOADING = 60_000  # milliseconds: Python starts in the browser


@pytest.fixture(scope="module")
def current(site: Path) -> None:
    """The site holds the package as it is now, so the numbers may be compared."""
    packed = site / "_static" / "playground" / "llmserve.zip"
    if not packed.is_file():
        missing("the built book has no playground: run make html")
    with zipfile.ZipFile(packed) as archive:
        stale = [n for n in archive.namelist() if archive.read(n) != (ROOT / n).read_bytes()]
    if stale:
        missing(f"the built book is older than {', '.join(stale)}: run make html")


@pytest.fixture(scope="module")
def page(current: None, address: str, browser: Any) -> Iterator[Any]:
    """One page for all of these tests: starting Python takes the longest."""
    opened, complaints = browser.new_page(), Complaints()
    complaints.listen(opened)
    opened.goto(f"{address}/{PAGE}")
    settle(opened)
    yield opened
    assert complaints.found == []
    opened.close()


def settle(page: Any) -> None:
    """Wait until the last change is simulated and drawn."""
    page.wait_for_timeout(200)  # longer than the page waits for further changes
    page.wait_for_function(
        "/^(Simulated in|Not)/.test(document.querySelector('#pg-status').textContent)", timeout=LOADING
    )
    page.wait_for_timeout(100)


def go(page: Any, settings: str) -> None:
    page.evaluate("hash => { location.hash = hash }", settings)
    settle(page)


def told(page: Any) -> dict[str, Any]:
    return page.evaluate("document.querySelector('#pg-results').result")


def move(page: Any, name: str, value: str) -> None:
    """Set a slider as a hand on it does."""
    page.evaluate(
        """([id, value]) => {
            const input = document.getElementById(id);
            input.value = value;
            input.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        [f"pg-{name}", value],
    )
    settle(page)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"load": 1.5, "policy_a": "Chunked", "policy_b": "Mixed", "budget": 64, "long_share": 0.3, "seed": 7},
        {"policy_a": "Dynamic", "policy_b": "Bucketed", "max_wait": 2.0, "slots": 4, "sigma": 1.2},
    ],
    ids=["defaults", "chunked and mixed", "dynamic and bucketed"],
)
def test_the_numbers_are_those_of_python(page: Any, settings: dict[str, Any]) -> None:
    go(page, "&".join(f"{name}={value}" for name, value in settings.items()))
    assert told(page) == json.loads(json.dumps(simulate(settings)))
    cells = page.locator(".pg-numbers tbody tr").all()
    assert [row.locator("th, td").all_inner_texts() for row in cells] == table(simulate(settings))


def test_a_control_moves_the_picture_the_numbers_and_the_address(page: Any) -> None:
    go(page, "")
    before = page.locator("#pg-picture").inner_html(), told(page)["runs"]["A"]["metrics"]["throughput"]
    move(page, "load", "1.6")
    after = page.locator("#pg-picture").inner_html(), told(page)["runs"]["A"]["metrics"]["throughput"]
    assert before[0] != after[0] and before[1] != after[1]
    assert "load=1.6" in page.url
    assert told(page)["settings"]["load"] == 1.6


def test_a_change_shows_within_about_a_second(page: Any) -> None:
    go(page, "seed=3")
    seconds = float(re.search(r"[\d.]+", page.locator("#pg-status").inner_text()).group())
    assert seconds < 5, "about one on an idle machine"


def test_steps_go_on_back_and_by_themselves(page: Any) -> None:
    go(page, "")
    result = simulate({})
    for button, number in (("next", 1), ("next", 2), ("back", 1)):
        page.locator(f"#pg-{button}").click()
        page.wait_for_function(
            f"document.querySelector('#pg-told').textContent.includes('Step {number + 1} of')"
        )
        words = explain(result, "A", number)
        rows = page.locator(".pg-slots tbody tr").all()
        shown = [row.locator("td").all_inner_texts() for row in rows]
        assert shown == [[slot, request, said] for slot, request, _, said in words["slots"]]
    page.locator("#pg-play").press("Enter")  # by keyboard
    page.wait_for_function("document.querySelector('#pg-told').textContent.includes('Step 4 of')")
    assert page.locator("#pg-play").inner_text() == "Pause"
    page.locator("#pg-play").press("Enter")
    assert page.locator("#pg-play").inner_text() == "Play"
    page.locator("#pg-side").select_option("B")
    page.wait_for_function("location.hash.includes('side=B')")


def test_a_click_on_a_timeline_goes_to_that_step(page: Any) -> None:
    go(page, "")
    page.locator("#pg-picture svg").click(position={"x": 300, "y": 60})
    page.wait_for_function("/step=\\d+/.test(location.hash)")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("load=99", "Load: 99 will not do; give a number from 0.1 to 3.0"),
        ("slots=16&budget=8&policy_b=Chunked", "max_num_batched_tokens=8: give a whole number, at least"),
        ("policy_a=Clever", "choose one of Static, Dynamic"),
    ],
)
def test_a_bad_setting_is_told_in_words_and_can_be_put_right(page: Any, settings: str, words: str) -> None:
    go(page, settings)
    assert words in page.locator("#pg-error").inner_text()
    page.locator("#pg-reset").click()
    settle(page)
    assert page.locator("#pg-error").inner_text() == ""


def test_every_control_has_a_label_and_can_be_reached_by_keyboard(page: Any) -> None:
    go(page, "policy_a=Dynamic&policy_b=Chunked")  # they use every control
    controls = page.locator("#pg-controls :is(input, select)")
    names = set(controls.evaluate_all("all => all.map(one => one.labels[0]?.textContent)"))
    assert len(names) == controls.count() and None not in names
    page.locator("#pg-policy_a").focus()
    reached = []
    for _ in range(controls.count()):
        reached.append(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    assert set(reached) == set(controls.evaluate_all("all => all.map(one => one.id)"))
    page.locator("#pg-load").press("ArrowRight")
    settle(page)
    assert told(page)["settings"]["load"] == 0.9


def test_without_javascript_there_is_a_picture(site: Path, address: str, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/{PAGE}")
    assert page.locator("#pg-still img").is_visible()
    assert not page.locator("#pg-status").is_visible()
    context.close()


def test_opened_as_a_file_it_says_what_to_do(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / PAGE).as_uri())
    assert "make serve" in page.locator("#pg-status").inner_text()
    assert page.locator("#pg-still img").is_visible()
    page.close()
