"""The timeline draws what the log says; every figure renders without a display."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from helpers.build import ask, unit_engine
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from llmserve import beside, plots
from llmserve.knee import Knee
from llmserve.life import phases, preemptions, spans
from llmserve.loop import serve
from llmserve.models.gpt2 import Config
from llmserve.plots.style import POLICY_COLORS, policy_color
from llmserve.plots.timeline import batches
from llmserve.policies import ShortestRemaining, Static
from llmserve.posts import COLUMN
from llmserve.profiling import PARTS
from llmserve.readings import recorded_column
from llmserve.roofline import Peak, StepWork
from llmserve.run import Run

WORK, PEAK = StepWork.of(Config()), Peak(30e9, 200e9)
STEPS = {batch: [0.02 * batch, 0.03 * batch] for batch in (1, 2, 4, 8)}
CURVE = {n: [0.019, 0.02 + 0.0005 * max(n, 40), 0.07] for n in (1, 3, 8, 40, 64)}
TOKENS = {"Continuous": [1.0, 1.1, 1.6, 1.7], "Chunked": [2.0, 2.25, 2.5]}
POINTS = {
    "Static": ([1.0, 3.0, 2.0], [10.0, 30.0, 20.0]),
    "Chunked": ([4.0], [25.0]),
    "Mixed": ([4.1], [25.1]),
}


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


def preempted() -> dict[str, Run]:
    """One run in which a short request takes a long one's slot."""
    requests = [ask("a", output=12), ask("b", output=14), ask("c", output=3, at=2.5)]
    return {"taken": serve(requests, ShortestRemaining(2, 4), unit_engine(2))}


def test_a_lane_shows_what_is_computed_again_and_the_title_the_longest_wait() -> None:
    figure = plots.waits(preempted(), lambda request: request.max_tokens > 3, "Waits", "steps")
    (panel,) = figure.axes
    assert panel.get_title(loc="left") == "taken: a short one waits 2 steps at most"
    hatched = [bar.get_paths()[0].get_extents() for bar in panel.collections if bar.get_hatch()]
    assert [(box.x0, box.x1, round(box.y0)) for box in hatched] == [(6.0, 7.0, 1)]


def figures(run: Run) -> list[Figure]:
    return [
        plots.block_tables({"A": [0, 3], "B": [0, 1, 5]}, {"A": 5, "B": 11}, num_blocks=7, block_size=4),
        plots.engine_rates(beside.recorded(), most=177.0),
        plots.timeline(run),
        plots.timeline(serve([ask("a", output=3)], Static(2), unit_engine(2)), num_batches=1),
        plots.step_against_floor(WORK, PEAK, 128, list(STEPS)),
        plots.step_against_floor(WORK, PEAK, 128, list(STEPS), STEPS),
        plots.roofline(WORK, PEAK, 128, STEPS),
        plots.step_parts({batch: dict.fromkeys(PARTS, 0.001) for batch in STEPS}),
        plots.timelines({"one": run, "two": run}, until=6.0, title="Two runs"),
        plots.timelines({"one": run, "two": run}, until=6.0, title="Step by step", each_step=True),
        plots.lives({"Static": phases(run, "a"), "Dynamic": phases(run, "d")}, "Two lives"),
        plots.lines({"x": {1: [1.0, 2.0], 4: [3.0]}, "y": {1: [1.0], 4: [3.1]}}, "A", "n", "ms", log="x"),
        plots.queues({"Static": run}, "A queue"),
        plots.gap_tails({"Static": run}, "Gaps"),
        plots.launch_sizes({"Static": [3, 3], "Dynamic": [1, 3, 2]}, 3, "Launches"),
        plots.spread({"40": [0.8, 1.0], "400": [0.9, 1.0]}, "Seeds", "ratio"),
        plots.metric_dots({"a": {"mine": [1.0, 2.0]}}, {}, "M", colors={"mine": "#FF0000"}),
        plots.metric_dots({"a": {"Static": [1.0, 2.0]}, "b": {"Static": [3.0]}}, {"a": {"Static": 1.5}}, "M"),
        plots.caches({"A": 4, "B": 2}, slot_tokens=6),
        plots.memory_over_steps({"reserved": [4.0, 8.0, 8.0], "used": [1.0, 3.0, 5.0]}, "Memory"),
        plots.knee_curve(CURVE, Knee(40.0, 0.02, 0.0005), (30.0, 50.0), 57.0, "A knee"),
        plots.token_times(TOKENS, "Tokens of one request"),
        plots.frontier(POINTS, "Bought and paid", "seconds", "tokens/s"),
        plots.waits({"one": run, "two": run}, lambda request: request.max_tokens > 3, "Waits"),
        plots.waits(preempted(), lambda request: request.max_tokens > 3, "Waits"),
        plots.prices(preemptions(preempted()["taken"]), "Prices"),
        plots.prices([], "No preemption"),
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


def texts(figure: Figure) -> list[str]:
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


def test_every_figure_of_the_package_is_drawn_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[str] = set()

    def noting(name: str, plot: Callable[..., Figure]) -> Callable[..., Figure]:
        return lambda *args, **more: drawn.add(name) or plot(*args, **more)

    names = set(plots.__all__) - {"POLICY_COLORS", "ORDER_COLORS"}
    for name in names:
        monkeypatch.setattr(plots, name, noting(name, getattr(plots, name)))
    figures(run)
    assert drawn == names


def test_a_knee_curve_shows_the_readings_the_fit_the_knee_and_the_ridge() -> None:
    knee = Knee(40.0, 0.02, 0.0005)
    (axes,) = plots.knee_curve(CURVE, knee, (30.0, 50.0), 57.0, "A knee").axes
    dots, fit, ridge = axes.lines
    assert list(dots.get_xdata()) == [1, 3, 8, 40, 64]
    assert list(dots.get_ydata()) == pytest.approx([40.0] * 4 + [52.0]), "medians, in milliseconds"
    assert (fit.get_ydata()[0], fit.get_ydata()[-1]) == pytest.approx((40.0, 52.0))
    assert (fit.get_xdata()[0], fit.get_xdata()[-1]) == pytest.approx((1, 64))
    assert set(ridge.get_xdata()) == {57.0}
    (ranges,) = axes.collections
    assert [tuple(segment[:, 1]) for segment in ranges.get_segments()] == [(pytest.approx(19), 70)] * 5
    assert [text.get_text().strip() for text in axes.texts] == ["knee 40", "ridge says 57"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "64"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (between,) = axes.patches
    assert (between.get_x(), between.get_x() + between.get_width()) == pytest.approx((30, 50))


def test_token_times_count_from_the_first_token_and_mark_the_longest_gap() -> None:
    figure = plots.token_times(TOKENS, "Tokens")
    (axes,) = figure.axes
    ticks = [[segment[0, 0] for segment in lane.get_segments()] for lane in axes.collections]
    assert ticks == [pytest.approx([0.0, 0.1, 0.6, 0.7]), pytest.approx([0.0, 0.25, 0.5])]
    assert texts(figure) == ["500 ms", "250 ms"]
    assert list(axes.lines[0].get_xdata()) == pytest.approx([0.1, 0.6])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(TOKENS)


@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_a_frontier_names_every_dot_in_its_colour_and_shows_both_ranges(log: str) -> None:
    figure = plots.frontier(POINTS, "A", "seconds", "tokens/s", log=log)
    (axes,) = figure.axes
    assert sorted(texts(figure)) == sorted(POINTS)
    across, up, dot = axes.lines[:3]
    assert (list(across.get_xdata()), list(across.get_ydata())) == ([1.0, 3.0], [20.0, 20.0])
    assert (list(up.get_xdata()), list(up.get_ydata())) == ([2.0, 2.0], [10.0, 30.0])
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([2.0], [20.0])
    assert {text.get_text(): text.get_color() for text in axes.texts} == {n: POLICY_COLORS[n] for n in POINTS}
    near = {text.get_text(): text.xyann for text in axes.texts}
    assert abs(near["Chunked"][1] - near["Mixed"][1]) >= 0.07, "two names do not lie on each other"
    assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == ("x" in log, "y" in log)
    assert ("x" in log or axes.get_xlim()[0] == 0) and ("y" in log or axes.get_ylim()[0] == 0)


def test_timelines_draw_a_box_a_step_or_one_a_span(run: Run) -> None:
    def boxes(until: float, each_step: bool) -> list[int]:
        figure = plots.timelines({"one": run, "two": run}, until, "T", each_step=each_step)
        return [len(panel.collections) for panel in figure.axes]

    merged, single = len(spans(run.log)), sum(len(step.chunks) for step in run.log)
    assert merged < single
    assert boxes(99.0, each_step=False) == [merged] * 2
    assert boxes(99.0, each_step=True) == [single] * 2
    assert boxes(2.0, each_step=True) == [6] * 2, "two steps of three slots start before then"


def test_lines_draw_every_series_also_beyond_the_palette() -> None:
    series = {f"s{i}": {1: [i + 1.0, i + 2.0], 2: [i + 3.0]} for i in range(8)}
    figure = plots.lines(series, "A", "n", "ms", colors={"s6": "#123456"})
    (axes,) = figure.axes
    assert len(axes.lines) == len(axes.collections) == 8
    assert sorted(texts(figure)) == sorted(series)
    assert list(axes.lines[7].get_ydata()) == [8.5, 10.0]
    assert axes.lines[6].get_color() == "#123456"
    assert all(axes.lines[i].get_color() != axes.lines[i + 1].get_color() for i in range(7))


@pytest.mark.parametrize(
    ("post", "more", "caption"),
    [
        ({}, {}, "dots: this run, median and range"),
        ({"a": {"Mixed": 1.5}}, {}, f"dots: this run, median and range; diamonds: {COLUMN}"),
        ({"a": {"Mixed": 1.5}}, {"other": "simulated", "dots": "real"}, "dots: real; diamonds: simulated"),
    ],
)
def test_metric_dots_say_what_dots_and_diamonds_are(
    post: dict[str, dict[str, float]], more: dict[str, str], caption: str
) -> None:
    readings = {"a": {"Static": [1.0, 2.0, 4.0], "Mixed": [3.0]}, "b": {"Static": [5.0], "Mixed": [6.0]}}
    figure = plots.metric_dots(readings, post, "M", **more)
    assert figure.get_supxlabel() == caption
    first, second = figure.axes
    assert [list(line.get_xdata()) for line in first.lines[:2]] == [[1.0, 4.0], [2.0]]
    diamonds = [(*line.get_xdata(), *line.get_ydata()) for line in first.lines if line.get_marker() == "D"]
    assert diamonds == ([(1.5, 1)] if post else [])
    assert not [line for line in second.lines if line.get_marker() == "D"]
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["a", "b"]


def test_recorded_squares_name_the_machine_of_their_table() -> None:
    machine = recorded_column("light")
    assert "(" in machine
    dots = plots.metric_dots(
        {"a": {"Static": [1.0]}}, {}, "M", recorded={"a": {"Static": 2.0}}, table="light"
    )
    assert f"squares: {machine}" in dots.get_supxlabel()
    rows = plots.against_post(["x"], [[1.0]], [1.5], "A", "s", "#D55E00", recorded=[2.0], table="light")
    assert machine in [text.get_text() for text in rows.legends[0].get_texts()]
