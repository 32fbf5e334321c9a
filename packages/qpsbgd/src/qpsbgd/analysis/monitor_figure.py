"""A training run as a figure: what `Monitor.plot` draws."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from qpsbgd.analysis.monitor import Observation

MOST_POINTS = 200
"""Points of a line: of more steps, means over as many neighbours as it takes."""


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
    panels: dict[str, dict[str, Mapping[int, float]]] = {"loss": {"": losses}} if losses else {}
    for title, figure, factor in (("flips per step, %", "flip_rate", 100.0), ("energy of the spins", "energy", 1.0)):
        lines: dict[str, dict[int, float]] = {}
        for one in observations:
            if figure in one.figures:
                lines.setdefault(one.layer, {})[one.step] = factor * one.figures[figure]
        if lines:
            panels[title] = dict(lines)
    made = ShownFigure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, (title, found) in zip(made.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, line in found.items():
            steps, values = list(line), list(line.values())
            width = -(-len(steps) // MOST_POINTS)
            parts = range(0, len(steps), width)
            means = [sum(values[k : k + width]) / len(values[k : k + width]) for k in parts]
            axes.plot([steps[k] for k in parts], means, label=name, linewidth=1)
        axes.set(title=title, xlabel="step")
        if len(found) > 1 or next(iter(found)):
            axes.legend(fontsize="small")
    return made
