"""Traffic from a file: what is read, what is said of bad rows, and lengths scaled to a window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.build import ask
from hypothesis import given
from hypothesis import strategies as st

from llmserve.loop import serve
from llmserve.policies import Continuous
from llmserve.race import recorded_engine
from llmserve.traffic import EXAMPLE, read_csv, scale_factor, scaled
from llmserve.workload import ZOMBIES

HEAD = "arrival,prompt_tokens,output_tokens\n"
LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=8)


def written(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "traffic.csv"
    path.write_bytes(text.encode(encoding))
    return path


def shapes(requests: list) -> list[tuple[float, int, int]]:
    return [(r.arrival_time, len(r.prompt_token_ids), r.max_tokens) for r in requests]


def test_rows_become_requests_in_their_order(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, HEAD + "2.5,7,3\n0,1,1\n"))
    assert shapes(found) == [(2.5, 7, 3), (0.0, 1, 1)]
    assert [r.id for r in found] == ["r0", "r1"]
    assert all(r.ignore_eos and r.expected_tokens == r.max_tokens for r in found)


@pytest.mark.parametrize(
    "text",
    [
        "user,output_tokens, arrival ,prompt_tokens\nann,3,2.5,7\nbob,1,0,1\n",
        "\ufeff" + HEAD + "2.5,7,3\r\n0,1,1\r\n",
        HEAD + '"2.5", 7 ,3\n\n0.0,01,1\n',
        HEAD + "2.5,7,3,and,more\n0,1,1",
    ],
    ids=["other columns and order", "from a spreadsheet", "quotes, blanks and an empty line", "more cells"],
)
def test_what_a_file_may_look_like(tmp_path: Path, text: str) -> None:
    assert shapes(read_csv(written(tmp_path, text))) == [(2.5, 7, 3), (0.0, 1, 1)]


def test_token_ids_are_drawn_as_a_workload_draws_them(tmp_path: Path) -> None:
    asked = ZOMBIES.with_(seed=5).requests()
    rows = "".join(f"0,{len(r.prompt_token_ids)},{r.max_tokens}\n" for r in asked)
    path = written(tmp_path, HEAD + rows)
    assert read_csv(path, seed=5) == asked
    assert read_csv(path) == read_csv(path) != asked


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("soon,7,3", "line 3: arrival='soon' is not a number of seconds, 0 or more"),
        ("-1,7,3", "line 3: arrival='-1' is not"),
        ("nan,7,3", "line 3: arrival='nan' is not"),
        ("1,0,3", "line 3: prompt_tokens='0' is not a whole number of tokens, 1 to 1000000"),
        ("1,7,2.5", "line 3: output_tokens='2.5' is not a whole number"),
        ("1,7,9999999", "line 3: output_tokens='9999999' is not"),
        ("1,7", "line 3: output_tokens is missing"),
        ("1,,x", "line 3: prompt_tokens is missing; output_tokens='x' is not"),
    ],
)
def test_a_bad_row_is_named_by_its_line_its_value_and_the_reason(
    tmp_path: Path, row: str, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        read_csv(written(tmp_path, f"{HEAD}0,1,1\n{row}\n3,4,5\n"))
    assert "1 bad row;" in str(raised.value)


def test_all_bad_rows_are_told_at_once_up_to_eight(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as raised:
        read_csv(written(tmp_path, HEAD + "0,1,1\n" + "x,1,1\n" * 11))
    told = str(raised.value).splitlines()
    assert "11 bad rows" in told[0]
    assert [line.split(":")[0].strip() for line in told[1:9]] == [f"line {n}" for n in range(3, 11)]
    assert told[9:] == ["  and 3 more"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column arrival, prompt_tokens, output_tokens in the first line"),
        ("0,7,3\n", "which is '0, 7, 3'; write the header arrival,prompt_tokens,output_tokens"),
        ("arrival;prompt_tokens;output_tokens\n0;7;3\n", "no column arrival"),
        ("arrival,prompt,output_tokens\n0,7,3\n", "no column prompt_tokens in"),
        (HEAD, "no rows under the header"),
    ],
)
def test_a_file_without_header_or_rows_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_csv(written(tmp_path, text))


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no CSV file in UTF-8"):
        read_csv(written(tmp_path, HEAD + "0,1,1\n", encoding="utf-16"))
    with pytest.raises(FileNotFoundError):
        read_csv(tmp_path / "none.csv")


def test_lengths_shrink_alike_and_the_longest_just_fits() -> None:
    long = [ask("a", 60, 40, at=3.0), ask("b", 30, 10), ask("c", 1, 1)]
    found = scaled(long, 50)
    assert scale_factor(long, 50) == 0.5
    assert shapes(found) == [(3.0, 30, 20), (0.0, 15, 5), (0.0, 1, 1)]
    assert found[0].prompt_token_ids == long[0].prompt_token_ids[:30]
    assert [r.expected_tokens for r in found] == [20, 5, 1]


def test_what_fits_stays_as_it_is() -> None:
    fits = [ask("a", 6, 4), ask("b", 3, 1)]
    assert scaled(fits, 10) == fits and scale_factor(fits, 10) == 1.0
    assert scaled([], 10) == [] and scale_factor([], 10) == 1.0


def test_a_window_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len=1: a request needs room"):
        scaled([ask("a", 6, 4)], 1)


@given(LENGTHS, st.integers(2, 200))
def test_whatever_the_lengths_each_fits_and_keeps_a_token_of_both(
    lengths: list[tuple[int, int]], window: int
) -> None:
    requests = [ask(f"r{i}", prompt, output) for i, (prompt, output) in enumerate(lengths)]
    for before, after in zip(requests, scaled(requests, window), strict=True):
        prompt, output = len(after.prompt_token_ids), after.max_tokens
        assert 1 <= prompt <= len(before.prompt_token_ids) and 1 <= output <= before.max_tokens
        assert prompt + output <= window


def test_the_example_is_made_as_its_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    readme = EXAMPLE.with_name("README.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", readme, re.S).group(1), {})
    assert capsys.readouterr().out == EXAMPLE.read_text(encoding="utf-8")


def test_the_example_is_served_whole_and_scaled() -> None:
    requests = read_csv(EXAMPLE)
    assert 40 <= len(requests) <= 60 and scale_factor(requests, 1024) < 1
    for some in (requests, scaled(requests, 256)):
        policy = Continuous(8)
        assert serve(some, policy, recorded_engine([policy], some)).summary()["n"].item() == len(requests)
