"""All figures of an experiment, by the names of their files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from matplotlib.figure import Figure

from qpsbgd_paper.report.curves import curve_panels, plot_curves
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.rendering import image
from qpsbgd_paper.report.summaries import Summary, file_name

CURVES = "Means of the seeds; the scale shows what most lines need."


@dataclass(frozen=True)
class Picture:
    """A figure that has not been drawn yet, with its words."""

    title: str
    caption: str
    draw: Callable[[], Figure]
    shows_data: bool = False

    @cached_property
    def svg(self) -> bytes:
        """The figure as an SVG file."""
        return image(self.draw, "svg")


def pictures(summary: Summary) -> dict[str, Picture]:
    """Every series and every figure of an experiment, by name.

    The first series has the experiment's name, others `<experiment>-<series>`, a figure `<experiment>-<name>`.
    """
    experiment = summary["experiment"]
    drawn: dict[str, Picture] = {}
    for number, series in enumerate(summary.get("series", ())):
        if curve_panels(summary, series):
            name = file_name(experiment, series["key"]) if number else experiment
            drawn[name] = Picture(
                series["label"][:1].upper() + series["label"][1:], CURVES, partial(plot_curves, summary, series)
            )
    for figure in summary.get("figures", ()):
        name = file_name(experiment, figure["name"])
        if name in drawn:
            raise ValueError(f"{experiment} has two figures named {name!r}; give them different names")
        words = {"title": figure["title"], "caption": figure.get("caption", "")}
        drawn[name] = Picture(**words, draw=partial(plot_panels, figure), shows_data=figure.get("shows_data", False))
    return drawn
