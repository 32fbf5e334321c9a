"""Learning rate and batch size on Cora: how robust QP-SBGD is, a figure of the paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qpsbgd_paper.experiments import citation
from qpsbgd_paper.framework.claims import Claim, Source
from qpsbgd_paper.framework.comparison import Case, Comparison
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import Grid, Line, Options, printed, rates
from qpsbgd_paper.framework.runs import Work

RATES, PARTS = (0.001, 0.003, 0.01, 0.03), (4, 8, 16, 32)
RATE, PART = 0.01, 16
"""The middle: what the other one is varied at."""


def _form(name: str, lr: float) -> Grid:
    """The options of a form: as printed with a mean loss, or our spins."""
    if name == "as printed":
        return printed(lr, solver="exact")[:1]
    return rates(lr, solver="exact", scale=1.0, momentum=0.9)


def _lines(form: str) -> dict[str, dict[str, Line]]:
    """The lines of a form, by what is varied."""
    rates_of = {f"{form}, lr {lr:g}": (f"lr {lr:g} ({form})", lr, PART) for lr in RATES}
    parts_of = {f"{form}, 1/{parts}": (f"1/{parts} of the nodes ({form})", RATE, parts) for parts in PARTS}
    return {
        f"{varied}, {form}": {
            name: Line(label, "qpsbgd", _form(form, lr), "ours", {"parts": parts})
            for name, (label, lr, parts) in lines.items()
        }
        for varied, lines in (("learning rate", rates_of), ("batch size", parts_of))
    }


VARIED: Mapping[str, Mapping[str, Line]] = _lines("as printed") | _lines("spins")


@dataclass(frozen=True)
class Ablation(Comparison):
    """QP-SBGD (exact) on Cora with one thing varied at a time."""

    name = "ablation"
    title = "Cora: learning rate and batch size"
    about = (
        "QP-SBGD (exact) on Cora as in the experiment cora, as printed (mean loss) and with our spins (scale 1, "
        "momentum 0.9). The learning rate is varied at batches of 1/16 of the training nodes, the batch at learning "
        "rate 0.01. Robust means: no significant difference, either way."
    )
    paper = "Figure, mean of six runs: robust to the batch size, somewhat to the step size."
    chosen_in_view = citation.Citation.chosen_in_view
    metrics = citation.Citation.metrics
    series = citation.Citation.series
    chosen_by = citation.VALIDATION
    seeds: int = 6
    choosing_seeds: int = 0
    steps: int = 300

    def cases(self) -> Sequence[Case]:
        """What is varied, of which form."""
        return [Case(name) for name in VARIED]

    def lines(self, case: Case) -> Mapping[str, Line]:
        """One line for every value."""
        return VARIED[case.name]

    def job(self, case: Case, line: Line, options: Options) -> Job:
        """As in the experiment cora."""
        gain = citation.gain(options)
        shape = {"graph": "cora", "width": 10, "steps": self.steps, **line.settings, "gain": gain, "decay": True}
        return {**shape, "method": "qpsbgd", "options": options}

    @property
    def work(self) -> Work:
        """See `citation.train`."""
        return citation.train

    def prepare(self) -> None:
        """Find the data."""
        citation.prepared("cora")

    def quick(self) -> Ablation:
        """Two seeds, few steps."""
        return replace(self, seeds=2, steps=80)

    def claims(self) -> Sequence[Claim]:
        """Robust: what is far from the middle is neither better nor worse."""
        found = []
        for case, lines in VARIED.items():
            varied, form = case.split(", ")
            source: Source = "paper" if form == "as printed" else "aim"
            middle = f"{form}, lr {RATE:g}" if varied == "learning rate" else f"{form}, 1/{PART}"
            for line in lines:
                if line != middle:
                    text = f"Robust to the {varied}: {line} is level with {middle.removeprefix(f'{form}, ')}"
                    key = citation.TEST.key
                    found.append(Claim(text, line, key, (case,), (middle,), relation="level", source=source))
        return found
