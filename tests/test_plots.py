"""The timeline draws what the log says; every figure renders without a display."""

from __future__ import annotations

import io

import pytest
from helpers.build import ask, unit_engine
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from llmserve import plots
from llmserve.life import phases
from llmserve.loop import serve
from llmserve.models.gpt2 import Config
from llmserve.plots.style import POLICY_COLORS, policy_color
from llmserve.plots.timeline import batches, spans
from llmserve.policies import Static
from llmserve.profiling import PARTS
from llmserve.roofline import Peak, StepWork
from llmserve.run import Run

WORK, PEAK = StepWork.of(Config()), Peak(30e9, 200e9)
STEPS = {batch: [0.02 * batch, 0.03 * batch] for batch in (1, 2, 4, 8)}


@pytest.fixture
def run() -> Run:
    requests = [ask(name, output=n) for name, n in zip("abcdef", (5, 2, 3, 1, 4, 2), strict=True)]
    return serve(requests, Static(3), unit_engine(3))


def test_equal_neighbours_become_one_span(run: Run) -> None:
    first = [(s.place, s.request_id, s.kind, s.start, s.end) for s in spans(batches(run)[0])]
    assert sorted(first) == [
        (0, "a", "decode", 1.0, 5.0),
        (0, "a", "prefill", 0.0, 1.0),
        (1, "b", "decode", 1.0, 2.0),
        (1, "b", "prefill", 0.0, 1.0),
        (1, "b", "zombie", 2.0, 5.0),
        (2, "c", "decode", 1.0, 3.0),
        (2, "c", "prefill", 0.0, 1.0),
        (2, "c", "zombie", 3.0, 5.0),
    ]


def test_a_batch_starts_when_requests_enter(run: Run) -> None:
    assert [(steps[0].start, steps[-1].end) for steps in batches(run)] == [(0.0, 5.0), (5.0, 9.0)]


def test_the_timeline_says_how_much_of_each_batch_was_useful(run: Run) -> None:
    figure = plots.timeline(run)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "batch 1\n67% useful" in texts  # (5 + 2 + 3) / (3 x 5)
    assert "batch 2\n58% useful" in texts
    assert {"useful rows", "zombie rows", "prefill"} <= set(texts)
    colors = {to_hex(c).upper() for c in figure.axes[0].collections[0].get_facecolor()}
    assert colors <= {POLICY_COLORS["Static"], "#444444", "#FFFFFF"}


def figures(run: Run) -> list[Figure]:
    return [
        plots.timeline(run),
        plots.timeline(serve([ask("a", output=3)], Static(2), unit_engine(2)), num_batches=1),
        plots.step_against_floor(WORK, PEAK, 128, list(STEPS)),
        plots.step_against_floor(WORK, PEAK, 128, list(STEPS), STEPS),
        plots.roofline(WORK, PEAK, 128, STEPS),
        plots.step_parts({batch: dict.fromkeys(PARTS, 0.001) for batch in STEPS}),
        plots.timelines({"one": run, "two": run}, until=6.0, title="Two runs"),
        plots.lives({"Static": phases(run, "a"), "Dynamic": phases(run, "d")}, "Two lives"),
        plots.lines({"x": {1: [1.0, 2.0], 4: [3.0]}, "y": {1: [1.0], 4: [3.1]}}, "A", "n", "ms", log="x"),
        plots.queues({"Static": run}, "A queue"),
        plots.gap_tails({"Static": run}, "Gaps"),
        plots.launch_sizes({"Static": [3, 3], "Dynamic": [1, 3, 2]}, 3, "Launches"),
        plots.spread({"40": [0.8, 1.0], "400": [0.9, 1.0]}, "Seeds", "ratio"),
        plots.metric_dots({"a": {"Static": [1.0, 2.0]}, "b": {"Static": [3.0]}}, {"a": {"Static": 1.5}}, "M"),
        plots.caches({"A": 4, "B": 2}, slot_tokens=6),
        plots.against_post(["x", "y"], [[1.0, 2.0], [3.0]], [1.5, 2.5], "A title", "tokens/s", "#D55E00"),
    ]


def test_every_figure_renders_white_with_a_title(run: Run) -> None:
    for figure in figures(run):
        file = io.BytesIO()
        figure.savefig(file)
        assert file.getbuffer().nbytes > 5000
        assert figure.get_suptitle()
        assert to_hex(figure.get_facecolor()) == "#ffffff"


def test_a_policy_keeps_its_colour_and_a_readers_own_gets_ink() -> None:
    assert policy_color(repr(Static(8))) == POLICY_COLORS["Static"]
    assert policy_color("Mine(max_num_seqs=8)") not in POLICY_COLORS.values()


def test_names_at_the_ends_of_lines_do_not_lie_on_each_other() -> None:
    figure = plots.lines({"x": {1: [1.0], 2: [3.0]}, "y": {1: [1.0], 2: [3.0]}}, "A", "n", "ms")
    heights = sorted(text.xy[1] for text in figure.axes[0].texts)
    assert heights[1] - heights[0] >= 0.07
