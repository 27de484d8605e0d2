"""The slot timeline: what each slot computed and when, straight from a run's log."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..life import Phase, Span, spans
from ..metrics import count_rows
from ..run import Run, Step
from .style import FAINT, INK, MUTED, finish, new_figure, policy_color

PREFILL = "#444444"
LANE = 0.8  # height of a lane, in slots


def batches(run: Run) -> list[list[Step]]:
    """The steps of a static-like run, a list a batch: a new one starts when requests are admitted."""
    starts = {event.time for event in run.events if event.kind == "admit"}
    found: list[list[Step]] = []
    for step in run.log:
        if step.start in starts or not found:
            found.append([])
        found[-1].append(step)
    return found


def timeline(run: Run, num_batches: int = 2, title: str | None = None, unit: str = "s") -> Figure:
    """Useful rows, zombie rows and prefill, one lane a slot: the first batches of a static-like run."""
    parts = batches(run)[:num_batches]
    title = title or f"What each slot computed: {run.policy}"
    figure, axes = new_figure(0.36 * run.max_num_seqs + 1.7, title)
    color = policy_color(run.policy)
    found = spans([step for steps in parts for step in steps])
    end = parts[-1][-1].end
    _draw(axes, found, color)
    _label_batches(axes, parts)
    _label_kinds(axes, found, run.max_num_seqs)
    _label_tokens(axes, found, end)
    axes.set(xlabel=f"time ({unit})", ylabel="slot", xlim=(0, end), ylim=(run.max_num_seqs + 0.05, -1.45))
    axes.set_yticks(range(run.max_num_seqs))
    axes.tick_params(axis="y", length=0)
    figure = finish(figure)
    axes.spines["left"].set_visible(False)
    return figure


def timelines(
    runs: Mapping[str, Run], until: float, title: str, unit: str = "s", each_step: bool = False
) -> Figure:
    """Several runs one above the other on one time axis, up to a time; with `each_step` a box a step."""
    slots = next(iter(runs.values())).max_num_seqs
    figure, _ = new_figure(len(runs) * (0.2 * slots + 0.55) + 0.8, title, rows=len(runs))
    for (name, run), panel in zip(runs.items(), figure.axes, strict=True):
        steps = [step for step in run.log if step.start < until]
        _draw(panel, spans(steps, merge=not each_step), policy_color(run.policy))
        useful = count_rows(steps).slot_efficiency
        panel.set_title(f"{name}: {useful:.0%} of the rows useful", loc="left", fontsize=11)
        panel.set(xlim=(0, until), ylim=(slots - 0.45, -0.55), yticks=[0, slots - 1], ylabel="slot")
        panel.tick_params(axis="y", length=0)
    figure.axes[-1].set_xlabel(f"time ({unit})")
    return finish(figure)


def lives(parts: Mapping[str, list[Phase]], title: str) -> Figure:
    """One request under several policies on one axis: waiting, prefill, decode, stalled."""
    figure, axes = new_figure(0.62 * len(parts) + 1.5, title)
    looks = {
        "waiting": {"facecolor": "white", "edgecolor": FAINT},
        "prefill": {"facecolor": PREFILL, "edgecolor": "white"},
        "stalled": {"facecolor": "#F0E442", "edgecolor": "white"},
    }
    for y, (policy, phases) in enumerate(parts.items()):
        for phase in phases:
            look = looks.get(phase.kind, {"facecolor": policy_color(policy), "edgecolor": "white"})
            axes.broken_barh(
                [(phase.start, phase.end - phase.start)], (y - LANE / 2, LANE), linewidth=0.5, **look
            )
    shown = {**looks, "decode": {"facecolor": MUTED, "edgecolor": "white"}}
    handles = [Patch(label=kind, **shown[kind]) for kind in ("waiting", "prefill", "decode", "stalled")]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set(xlabel="time (s)", ylim=(len(parts) - 0.45, -0.55))
    return finish(figure)


def _draw(axes: Axes, found: list[Span], color: str) -> None:
    looks = {
        "decode": {"facecolor": color, "edgecolor": "white"},
        "prefill": {"facecolor": PREFILL, "edgecolor": "white"},
        "zombie": {"facecolor": "white", "edgecolor": FAINT, "hatch": "//////"},
    }
    for span in found:
        place = (span.place - LANE / 2, LANE)
        axes.broken_barh([(span.start, span.end - span.start)], place, linewidth=0.8, **looks[span.kind])


def _label_batches(axes: Axes, parts: list[list[Step]]) -> None:
    """Above each batch: its number and the share of its rows that were useful; a rule between them."""
    for number, steps in enumerate(parts, start=1):
        useful = count_rows(steps).slot_efficiency
        start, end = steps[0].start, steps[-1].end
        axes.text((start + end) / 2, -0.95, f"batch {number}\n{useful:.0%} useful", ha="center", va="center")
        if number > 1:
            axes.axvline(start, color=INK, linewidth=1.2)


def _label_kinds(axes: Axes, found: list[Span], num_slots: int) -> None:
    """Name each kind once, on its longest span; prefill below the lanes."""
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    looks = {"decode": ("useful rows", "white", None), "zombie": ("zombie rows", MUTED, white)}
    for kind, (name, ink, box) in looks.items():
        of_kind = [span for span in found if span.kind == kind]
        if of_kind:
            longest = max(of_kind, key=lambda span: span.end - span.start)
            middle = (longest.start + longest.end) / 2
            axes.text(middle, longest.place, name, ha="center", va="center", color=ink, bbox=box)
    prompts = [span for span in found if span.kind == "prefill"]
    if prompts:
        axes.text(prompts[0].start, num_slots - 0.25, "prefill", color=PREFILL, va="center", fontsize=10)


def _label_tokens(axes: Axes, found: list[Span], end: float) -> None:
    """How many tokens a request got, at the end of its useful span (its prefill gave the first)."""
    for span in found:
        if span.kind == "decode" and span.end - span.start > 0.06 * end:
            tokens = span.steps + 1
            axes.text(
                span.end, span.place, f"{tokens} ", ha="right", va="center", color="white", fontsize=9.5
            )
