"""The playground's controls for JupyterLab and Binder, over the same functions as the page's.

from llmserve.widgets import playground

playground()  # or with settings to begin with: playground(load=1.2, policy_b="Chunked")
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from .playground import CONTROLS, POLICIES, SIDES, Control, complete, play, simulate
from .playtext import explain, sentences, table

if TYPE_CHECKING:
    import ipywidgets

WIDE = {"description_width": "13em"}


def playground(**settings: Any) -> ipywidgets.VBox:
    """Sliders, both timelines, the numbers, and a slider for the steps. ValueError for a bad setting."""
    import ipywidgets

    return Playground(complete(settings), ipywidgets).box


class Playground:
    """The widgets of one playground, and the result that they show."""

    def __init__(self, values: Mapping[str, Any], kit: Any) -> None:
        self.result: dict[str, Any] = {}
        self.controls = {control.name: _slider(control, values[control.name], kit) for control in CONTROLS}
        for side in SIDES:
            name = f"policy_{side.lower()}"
            self.controls[name] = kit.Dropdown(
                options=list(POLICIES), value=values[name], description=f"Policy {side}", style=WIDE
            )
        self.numbers, self.words, self.picture = kit.HTML(), kit.HTML(), kit.Image(format="png")
        self.side = kit.ToggleButtons(options=list(SIDES), description="Steps of", style=WIDE)
        self.step = kit.IntSlider(0, 0, 0, description="Step", style=WIDE, readout=False)
        player = kit.Play(min=0, interval=400)
        kit.jslink((player, "value"), (self.step, "value"))
        kit.jslink((self.step, "max"), (player, "max"))
        for control in self.controls.values():
            control.observe(self.update, "value")
        for control in (self.side, self.step):
            control.observe(self.show_step, "value")
        stepper = kit.HBox([self.side, player, self.step])
        parts = [*self.controls.values(), self.picture, self.numbers, stepper, self.words]
        self.box = kit.VBox(parts)
        self.update()

    def update(self, change: object = None) -> None:
        """Run both policies again with what the controls say, and show it, or say what is wrong."""
        settings = {name: control.value for name, control in self.controls.items()}
        try:
            self.result = simulate(settings)
        except ValueError as error:
            self.numbers.value = f"<p><strong>{escape(str(error))}</strong></p>"
            return
        self.picture.value = _picture(settings, self.result["until"])
        self.numbers.value = _table(["simulated", *_names(self.result)], table(self.result)) + "".join(
            f"<p>{escape(sentence)}</p>" for sentence in sentences(self.result)
        )
        self.show_step()

    def show_step(self, change: object = None) -> None:
        steps = self.result["runs"][self.side.value]["steps"]
        self.step.max = len(steps) - 1
        told = explain(self.result, self.side.value, min(self.step.value, self.step.max))
        rows = [[slot, request, words] for slot, request, _, words in told["slots"]]
        self.words.value = (
            f"<p><strong>{escape(told['title'])}.</strong> {escape(told['work'])}</p>"
            f"{_table(['slot', 'request', 'what it does'], rows)}"
            f"<p>Queue ({len(told['queue'])}): {escape(', '.join(told['queue']) or 'empty')}</p>"
        )


def _slider(control: Control, value: float, kit: Any) -> Any:
    kind = kit.IntSlider if isinstance(control.step, int) else kit.FloatSlider
    return kind(
        value=value,
        min=control.low,
        max=control.high,
        step=control.step,
        description=control.label,
        continuous_update=False,
        style=WIDE,
        layout={"width": "30em"},
    )


def _names(result: Mapping[str, Any]) -> list[str]:
    return [f"{side}: {run['policy'].split('(')[0]}" for side, run in result["runs"].items()]


def _picture(settings: Mapping[str, Any], until: float) -> bytes:
    """Both timelines on one axis, as the book draws them."""
    from io import BytesIO

    from .plots import timelines

    runs = {f"{side}, {run.policy.split('(')[0]}": run for side, run in play(settings).items()}
    made = BytesIO()
    timelines(runs, until, "What each slot computed").savefig(made, format="png")
    return made.getvalue()


def _table(heads: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(heads, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
