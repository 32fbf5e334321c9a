"""A training run as a figure: what `Monitor.plot` draws."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from qpsbgd.analysis.monitor import Observation

MOST_POINTS = 200  # points of a line: of more steps, means over as many neighbours as it takes


class ShownFigure(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def run_figure(observations: Sequence[Observation], losses: Mapping[int, float]) -> Figure:
    """Panels of the losses, the flips per layer and the energies, as far as there are any."""
    if not observations and not losses:
        raise ValueError("there is nothing to draw: no step was observed; a monitor with a callback collects none")
    panels = {
        "loss": {"": losses} if losses else {},
        "flips per step, %": _lines(observations, "flip_rate", 100.0),
        "energy of the spins": _lines(observations, "energy", 1.0),
    }
    panels = {title: lines for title, lines in panels.items() if lines}
    figure = ShownFigure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, line in lines.items():
            steps, values = list(line), list(line.values())
            width = -(-len(steps) // MOST_POINTS)
            parts = range(0, len(steps), width)
            means = [sum(values[k : k + width]) / len(values[k : k + width]) for k in parts]
            axes.plot([steps[k] for k in parts], means, label=name, linewidth=1)
        axes.set(title=title, xlabel="step")
        if len(lines) > 1 or next(iter(lines)):
            axes.legend(fontsize="small")
    return figure


def _lines(observations: Sequence[Observation], name: str, factor: float) -> dict[str, Mapping[int, float]]:
    """The values of a figure by layer and step."""
    lines: dict[str, dict[int, float]] = {}
    for observation in observations:
        if name in observation.figures:
            lines.setdefault(observation.layer, {})[observation.step] = factor * observation.figures[name]
    return dict(lines)
