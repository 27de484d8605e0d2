"""Who waited for whom: every request of a run as a lane, and what each preemption cost and brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..life import Preemption, phases
from ..metrics import request_times
from ..request import Request
from ..run import Run
from .style import FAINT, INK, MUTED, POLICY_COLORS, finish, new_figure

LONG, PROMPT = "#999999", "#444444"
SHORT = POLICY_COLORS["Continuous"]
AGAIN = {"facecolor": "white", "edgecolor": POLICY_COLORS["ShortestRemaining"], "hatch": "//////"}
ORDER_COLORS = {
    "first come": POLICY_COLORS["Continuous"],
    "shortest first": "#E69F00",
    "by priority, aged": "#56B4E9",
    "shortest first, aged": "#009E73",
    "shortest remaining": POLICY_COLORS["ShortestRemaining"],
}


def waits(runs: Mapping[str, Run], is_long: Callable[[Request], bool], title: str, unit: str = "s") -> Figure:
    """A panel a run, a lane a request, by arrival: a line while it waits, boxes while it runs.

    Hatched: the prompt and output tokens that a preemption made it compute again.
    """
    requests = sorted(next(iter(runs.values())).submitted, key=lambda request: request.arrival_time)
    figure, _ = new_figure(len(runs) * (0.145 * len(requests) + 0.5) + 1.1, title, rows=len(runs))
    for (name, run), panel in zip(runs.items(), figure.axes, strict=True):
        for lane, request in enumerate(requests):
            _lane(panel, lane, run, request.id, LONG if is_long(request) else SHORT)
        served = zip(request_times(run), run.submitted, strict=True)
        latest = max(times.ttft for times, request in served if not is_long(request))
        panel.set_title(f"{name}: a short one waits {latest:.0f} {unit} at most", loc="left", fontsize=11)
        panel.set(xlim=(0, max(run.log[-1].end for run in runs.values())), yticks=[])
        panel.set(ylim=(len(requests) - 0.3, -0.7))
    figure.axes[-1].set_xlabel(f"time ({unit})")
    looks = {"long": {"facecolor": LONG}, "short": {"facecolor": SHORT}, "prompt": {"facecolor": PROMPT}}
    handles = [Patch(label=name, **look) for name, look in {**looks, "computed again": AGAIN}.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    return finish(figure)


def _lane(axes: Axes, lane: int, run: Run, request_id: str, color: str) -> None:
    thrown_out = [e.time for e in run.events if (e.kind, e.request_id) == ("preempt", request_id)]
    for phase in phases(run, request_id):
        if phase.kind not in ("prefill", "decode"):
            axes.plot([phase.start, phase.end], [lane, lane], color=FAINT, linewidth=1.2, zorder=0)
            continue
        look = {"facecolor": color if phase.kind == "decode" else PROMPT, "edgecolor": "none"}
        if phase.kind == "prefill" and any(time <= phase.start for time in thrown_out):
            look = AGAIN
        axes.broken_barh([(phase.start, phase.end - phase.start)], (lane - 0.4, 0.8), linewidth=0.8, **look)


def prices(found: Sequence[Preemption], title: str) -> Figure:
    """A row a preemption: what computing again took, and how long the winner would have waited."""
    figure, axes = new_figure(0.32 * len(found) + 1.5, title)
    for y, one in enumerate(found):
        axes.plot([one.seconds, one.gain], [y, y], color=FAINT, linewidth=1.5, zorder=0)
        axes.plot(one.seconds, y, "o", color=POLICY_COLORS["ShortestRemaining"], markersize=7)
        axes.plot(one.gain, y, "D", color=POLICY_COLORS["Continuous"], markersize=7)
    rows = [f"{one.request_id} for {one.winner}" for one in found]
    axes.set_yticks(range(len(found)), rows)
    axes.set(xlabel="seconds", ylim=(len(found) - 0.4, -1.1))
    axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
    first = {"va": "bottom", "fontsize": 10, "textcoords": "offset points", "xytext": (0, 6)}
    if found:
        axes.annotate("computed again", (found[0].seconds, 0), ha="left", color=AGAIN["edgecolor"], **first)
        axes.annotate("wait saved", (found[0].gain, 0), ha="center", color=SHORT, **first)
    axes.grid(axis="y", color="#EEEEEE")
    axes.spines["left"].set_color(MUTED)
    axes.tick_params(axis="y", colors=INK)
    return finish(figure)
