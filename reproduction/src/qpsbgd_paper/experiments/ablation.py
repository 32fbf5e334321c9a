"""Learning rate and batch size on Cora: how robust QP-SBGD is, a figure of the paper's appendix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd_paper.experiments import citation
from qpsbgd_paper.framework.claims import ACCURACY_MARGIN, Claim, Judged, from_figure, judge_pairs
from qpsbgd_paper.framework.comparison import Case, Comparison
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import Line, Options, control_lines, printed

RATE, PARTS = 0.01, 16  # the middle: what the other one is varied at

RATES, BATCHES = (0.001, 0.003, 0.01, 0.03), (4, 8, 16, 32)
STEP, BATCH = "learning rate", "batch size"
MIDDLE = {STEP: f"lr {RATE:g}", BATCH: f"1/{PARTS}"}


def _line(label: str, *, lr: float = RATE, parts: int = PARTS) -> Line:
    summed = printed(lr, solver="exact")[1]
    return Line(label, "qpsbgd", (summed,), "ours", {"parts": parts})


VARIED: Mapping[str, Mapping[str, Line]] = {
    STEP: {f"lr {lr:g}": _line(f"lr {lr:g}", lr=lr) for lr in RATES},
    BATCH: {f"1/{parts}": _line(f"1/{parts} of the nodes", parts=parts) for parts in BATCHES},
}


def _spans(case: Mapping[str, Any]) -> list[float]:
    """Per seed, the largest less the smallest accuracy over the values of what is varied."""
    values = [row["values"][citation.TEST.key] for row in case["rows"] if row["kind"] == "ours"]
    return np.ptp(np.array(values, dtype=float), axis=0).tolist()


def _more_impacted(name: str, spans: Mapping[str, list[float]]) -> Judged:
    text = f"QP-SBGD is more impacted by the step size than by the batch size ({name})"
    step, batch = (spans[f"{varied}, {name}"] for varied in (STEP, BATCH))
    judgement = judge_pairs(text, step, batch, **from_figure(name == citation.TRAINED))
    return {**judgement, "detail": f"span of accuracies {judgement['detail']}"}


@dataclass(frozen=True)
class Ablation(Comparison):
    """QP-SBGD on Cora with one thing varied at a time."""

    name = "ablation"
    title = "Cora: learning rate and batch size"
    about = (
        "QP-SBGD as printed (summed loss) on Cora, in both settings of the experiment cora. The step size is varied "
        "at batches of 1/16 of the training nodes, the batch at learning rate 0.01. Robust means level with the middle "
        f"by an equivalence test, margin {ACCURACY_MARGIN:g}."
    )
    paper = "Figure, mean of six runs: robust to the batch size, slightly more impacted by the step size."
    chosen_in_view = citation.Citation.chosen_in_view
    metrics = citation.Citation.metrics
    series = citation.Citation.series
    chosen_by = citation.VALIDATION
    work = staticmethod(citation.train)
    needs = citation.Cora.needs
    small = {"seeds": 2, "steps": 80}
    seeds: int = 6
    choosing_seeds: int = 0
    steps: int = 200

    def cases(self) -> Sequence[Case]:
        return [
            Case(f"{varied}, {name}", {"varied": varied, **settings})
            for name, settings in citation.CASES.items()
            for varied in VARIED
        ]

    def lines(self, case: Case) -> Mapping[str, Line]:
        solver = "exact" if case.settings["features"] <= 16 else "descent"
        varied = VARIED[case.settings["varied"]]
        return {**{name: line.with_options(solver=solver) for name, line in varied.items()}, **control_lines()}

    def job(self, case: Case, line: Line, options: Options) -> Job:
        net = {key: value for key, value in case.settings.items() if key != "varied"}
        shape = {"graph": "cora", **net, "steps": self.steps, "parts": PARTS, **line.settings, "decay": True}
        return {**shape, "gain": citation.gain(options), "method": line.method, "options": options}

    def claims(self) -> Sequence[Claim]:
        claims = []
        for name in citation.CASES:
            level = {"relation": "level", "margin": ACCURACY_MARGIN, **from_figure(name == citation.TRAINED)}
            for varied, lines in VARIED.items():
                middle, case = MIDDLE[varied], (f"{varied}, {name}",)
                for line in (line for line in lines if line != middle):
                    text = f"QP-SBGD is robust to the {varied}: {line} is level with {middle}"
                    claims.append(Claim(text, line, citation.TEST.key, case, (middle,), **level))
        return claims

    def summary(self, *, folder: Path) -> dict[str, Any]:
        summary = super().summary(folder=folder)
        spans = {case["case"]: _spans(case) for case in summary["cases"]}
        summary["claims"] += [_more_impacted(name, spans) for name in citation.CASES]
        return summary
