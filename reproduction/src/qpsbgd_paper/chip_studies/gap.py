"""The spectral gap of a layer's QUBO on an annealer: a figure of the paper's appendix."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qpsbgd.analysis import full_batch
from qpsbgd.binary_map import binary_map
from qpsbgd.nn import BinaryLinear, Gain
from qpsbgd.optim import QPSBGD
from qpsbgd.projections import Printed
from qpsbgd_paper.chip_studies.spectrum import ADVANTAGE, LINEAR, direct_sum, in_range, levels, spectral_gap
from qpsbgd_paper.datasets.adult import training_rows
from qpsbgd_paper.framework.claims import Judged, judge_pairs, of_the_paper
from qpsbgd_paper.framework.experiment import Job, Study
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import fit, random_rows
from qpsbgd_qubo.ising import ising_columns

GAINS: dict[str, Gain] = {"1": 1.0, "1/√n": "fan_in"}
UNITS = {
    "own": "QUBO as it is, linear schedule",
    "chip": "QUBO filling the chip's ranges, linear schedule",
    "GHz": "QUBO filling the chip's ranges, schedule of Advantage_system5.4, GHz",
}
PAPER = {1: 0.03, 2: 0.01}
BLUE, RED = 1, 0  # in the palette of figures
MOST_SHOWN = 16


def measure(*, neurons: int, scale: Any, gain: str, seed: int, steps: int) -> Result:
    """The gaps of the QUBOs of one update, and for seed 0 and few neurons also the levels."""
    rows, targets = training_rows("three")
    torch.manual_seed(seed)
    layer = BinaryLinear(3, neurons, gain=GAINS[gain])
    optimizer = QPSBGD([layer], lr=0.03, projection=Printed(solver="auto", scale=scale), clip=None)
    *before, last = random_rows(len(rows), 1, steps + 1)
    fit(layer, lambda some: _loss(layer(rows[some]), targets[some]), rows=before, optimizers=[optimizer])
    record = full_batch(layer, (rows[last], targets[last]), _loss)[0].record
    family = binary_map(record.inputs.double(), record.output_grads.double(), gain=layer.gain, scale=scale)
    plain = ising_columns(family)
    chip = [in_range(column) for column in plain]
    gaps: dict[str, dict[str, Any]] = {}
    for unit, columns, schedule in (("chip", chip, LINEAR), ("own", plain, LINEAR), ("GHz", chip, ADVANTAGE)):
        gap = spectral_gap(columns, schedule=schedule, points=41)
        gaps[unit] = vars(gap)
    result: Result = {"gaps": gaps, "gradient": record.output_grads.abs().max().item()}
    if neurons <= 2 and not seed:
        whole, grid = direct_sum(plain), np.linspace(0, 1, 101)
        at = np.array([gaps["own"]["position"], 1.0])
        ground = levels(whole, points=at, count=1)[0, 0] if at[0] < 1 else levels(whole, count=1)[-1, 0]
        result["levels"] = levels(whole, points=grid, count=MOST_SHOWN).T.round(5).tolist()
        result["bar"] = [float(ground), float(ground) + gaps["own"]["smallest"]]
    return result


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Every neuron is a classifier of its own, so that all columns are draws from one distribution."""
    wanted = targets[:, None].expand_as(outputs)
    return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").sum(1).mean()


def _level_figure(runs: Sequence[tuple[Job, Result]]) -> dict[str, Any]:
    panels = []
    for job, result in runs:
        if "levels" not in result or job["gain"] != "1":
            continue
        x = np.linspace(0, 1, len(result["levels"][0])).round(4).tolist()
        look = {"colour": BLUE, "style": "line", "width": 1}
        lines: list[dict[str, Any]] = [{"x": x, "y": level, **look} for level in result["levels"]]
        gap, look = result["gaps"]["own"], {"colour": RED, "style": "bar", "width": 3}
        label = "smallest gap to a level that does not end in a ground state"
        bar = {"x": [gap["position"]] * 2, "y": result["bar"], "label": label, **look}
        many = f"{job['neurons']} neuron{'s' * (job['neurons'] > 1)}"
        title = f"{_scale_text(job['scale'])}, {many}: gap {gap['smallest']:.3g} at {gap['position']:.2f}"
        panels.append({"title": title, "x_label": "t/T", "y_label": "eigenvalue", "lines": [*lines, bar]})
    caption = (
        f"The lowest {MOST_SHOWN} levels at most, QUBO in its own unit, gain 1, linear schedule, first seed. "
        "The bar is the smallest gap between the ground level and the first level that does not end in a ground state."
    )
    return {"name": "levels", "title": "Levels of a layer", "caption": caption, "kind": "lines", "panels": panels}


def _scale_text(scale: Any) -> str:
    return "as printed" if scale == "literal" else f"scale {scale:g}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.2g} – {max(values):.2g})"


def _neuron_table(values: Mapping[tuple[str, str, str], list[float]]) -> dict[str, Any]:
    numbers = sorted({int(neurons) for _, neurons, _ in values})
    body = []
    for setting in dict.fromkeys(key[0] for key in values):
        for unit, words in UNITS.items():
            gaps = {number: values[setting, str(number), unit] for number in numbers}
            covers = all(min(gaps[number]) <= PAPER[number] <= max(gaps[number]) for number in PAPER)
            cells = [_spread(gaps[number]) for number in numbers]
            named = setting.replace("literal", "as printed").replace("1.0", "scale 1")
            body.append([named, words, *cells, "yes" if covers else "no"])
    columns = [f"{number} neuron{'s' * (number > 1)}" for number in numbers]
    head = ["scale and gain", "unit", *columns, "0.03 and 0.01 in range?"]
    return {"title": "Smallest gap, three inputs: median (least – greatest) over the seeds", "head": head, "body": body}


def _neuron_claims(values: Mapping[tuple[str, str, str], list[float]]) -> list[Judged]:
    settings = (
        ("literal, gain 1", "own", "as printed, gain 1, in the QUBO's own unit"),
        ("literal, gain 1", "chip", "as printed, gain 1, in the chip's ranges"),
        ("1.0, gain 1", "chip", "scale 1, gain 1, in the chip's ranges"),
    )
    claims = []
    for setting, unit, words in settings:
        text, source = f"The gap shrinks from one neuron to two ({words})", of_the_paper(setting.startswith("literal"))
        single, double = (values[setting, count, unit] for count in "12")
        claims.append(judge_pairs(text, single, double, source=source, number="0.03 to 0.01"))
    return claims


@dataclass(frozen=True)
class Gap(Study):
    """One binary linear layer on Adult, batches of one row."""

    name = "gap"
    title = "Spectral gap"
    about = (
        "One binary linear layer on Adult (LIBSVM's columns 6, 22 and 36), every neuron a classifier of its own with "
        "cross entropy, batches of one row; the QUBO after ten updates. The gap is the smallest one between the "
        "ground level and the first level that does not end in a ground state. H = −A/2 Σ X + B/2 H_problem; the "
        "linear schedule has A = 1 − t/T, B = t/T. Columns are not coupled, so that the gap of two neurons is the "
        "smaller of theirs: it cannot grow, and the claim that it shrinks cannot fail but by a tie."
    )
    paper = "Figure: smallest gap 0.03 with one neuron, 0.01 with two, in a unit that is not given."
    work = staticmethod(measure)
    needs = (training_rows,)
    small = {"seeds": 2, "steps": 2, "neurons": (1, 2)}
    seeds: int = 20
    steps: int = 10
    neurons: tuple[int, ...] = (1, 2, 4)

    def jobs(self) -> Sequence[Job]:
        return [
            {"neurons": neurons, "scale": scale, "gain": gain, "seed": seed, "steps": self.steps}
            for scale in ("literal", 1.0)
            for gain in GAINS
            for neurons in self.neurons
            for seed in range(self.seeds)
        ]

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        runs = list(zip(self.jobs(), results, strict=True))
        values: dict[tuple[str, str, str], list[float]] = {}
        for job, result in runs:
            for unit in UNITS:
                key = (f"{job['scale']}, gain {job['gain']}", f"{job['neurons']}", unit)
                values.setdefault(key, []).append(result["gaps"][unit]["smallest"])
        return {
            "figures": [_level_figure(runs)],
            "tables": [_neuron_table(values)],
            "claims": _neuron_claims(values),
        }
