"""Learning rate and batch size on Cora: how robust QP-SBGD is, a figure of the paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qpsbgd_paper.experiments import citation
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import Case, Comparison
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import Line, Options, printed
from qpsbgd_paper.framework.runs import Work

RATE, PARTS = 0.01, 16
"""The middle: what the other one is varied at."""


def _line(label: str, *, lr: float = RATE, parts: int = PARTS) -> Line:
    (mean_loss, _) = printed(lr, solver="exact")
    return Line(label, "qpsbgd", (mean_loss,), "ours", {"parts": parts})


VARIED: Mapping[str, Mapping[str, Line]] = {
    "learning rate": {f"lr {lr:g}": _line(f"lr {lr:g}", lr=lr) for lr in (0.001, 0.003, 0.01, 0.03)},
    "batch size": {f"1/{parts}": _line(f"1/{parts} of the nodes", parts=parts) for parts in (4, 8, 16, 32)},
}
MIDDLE = {"learning rate": f"lr {RATE:g}", "batch size": f"1/{PARTS}"}


@dataclass(frozen=True)
class Ablation(Comparison):
    """QP-SBGD (exact) on Cora with one thing varied at a time."""

    name = "ablation"
    title = "Cora: learning rate and batch size"
    about = (
        "QP-SBGD as printed (exact, mean loss) on Cora as in the experiment cora. The learning rate is varied at "
        "batches of 1/16 of the training nodes, the batch at learning rate 0.01. Robust means: no significant "
        "difference, either way."
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
        """What is varied."""
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
        return [
            Claim(
                f"QP-SBGD is robust to the {case}: {line} is level with {MIDDLE[case]}",
                line,
                citation.TEST.key,
                (case,),
                (MIDDLE[case],),
                relation="level",
            )
            for case, lines in VARIED.items()
            for line in lines
            if line != MIDDLE[case]
        ]
