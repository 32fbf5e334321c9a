"""How the QUBOs of the first MNIST layer change during training: the paper's picture of their matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd_paper.chip_studies import mnist_qubos
from qpsbgd_paper.chip_studies.mnist_qubos import ABOUT, FIRST, FORMS, PRINTED, UPDATES, QuboStudy
from qpsbgd_paper.chip_studies.released_qubo import size
from qpsbgd_paper.framework.claims import of_the_paper, with_verdict
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.runs import Result

LOOK = {"kind": "matrices", "limits": [-1, 1], "colour_label": "in units of the largest coupling"}
DENSE = 0.5  # at least this share of a column's couplings must not be zero for the paper's words to hold


def matrices(*, form: str, seed: int, updates: Sequence[int]) -> Result:
    """Couplings, fields and densities of the first layer at these updates of a run."""
    measured = [_measure(layers[FIRST]) for layers in mnist_qubos.qubos(form, seed=seed, updates=updates)]
    return {"form": form, "seed": seed, "at": measured}


def _measure(family: QuboFamily) -> dict[str, Any] | None:
    """None where no column has a gradient: then there is nothing to solve."""
    live = mnist_qubos.live_columns(family)
    if not live:
        return None
    n, m = family.linear.shape
    couplings = 2 * family.quadratic.double()
    couplings[couplings.abs() <= 1e-6 * couplings.abs().max()] = 0
    pairs = couplings[tuple(torch.triu_indices(n, n, 1))]
    nonzero = int((pairs != 0).sum())
    return {
        "couplings": _round(couplings),
        "fields": _round(family.linear.T.double()),
        "strongest": int(family.linear.abs().amax(0).argmax()),
        "live": len(live),
        "density": nonzero / len(pairs),
        "layer_density": m * nonzero / (n * m * (n * m - 1) / 2),
        "largest": float(pairs.abs().max()),
    }


def _layer_figure(drawn: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    panels = []
    for form, run in drawn.items():
        update, at = next((number, at) for number, at in enumerate(run["at"]) if at is not None)
        n, m = len(at["couplings"]), len(at["fields"])
        values: list[list[float | None]] = [[None] * (n * m) for _ in range(n * m)]
        for column, fields in enumerate(at["fields"]):
            for row, entries in enumerate(_upper(at, fields)):
                values[column * n + row][column * n : (column + 1) * n] = entries
        panels.append({"title": form if update == 0 else f"{form}, later", "values": values})
    caption = (
        "All 64 spins, column after column: the four blocks share their couplings (above the diagonal) and differ "
        "in their fields (on it). Spins of different columns are never coupled."
    )
    title = "The whole first layer at the first update"
    return {"name": "layer", "title": title, "caption": caption, **LOOK, "panels": panels}


def _upper(at: Mapping[str, Any], fields: Sequence[float]) -> list[list[float | None]]:
    """Couplings above the diagonal, fields on it, nothing below it or where a coupling is zero."""
    unit = at["largest"] or 1.0

    def cell(i: int, j: int, coupling: float) -> float | None:
        value = fields[i] if i == j else coupling if j > i else 0.0
        return float(f"{value / unit:.3g}") if value or i == j else None

    return [[cell(i, j, coupling) for j, coupling in enumerate(row)] for i, row in enumerate(at["couplings"])]


def _cells(every: Sequence[Mapping[str, Any] | None]) -> list[str]:
    measured = [at for at in every if at is not None]
    if not measured:
        return ["0", *["–"] * 5]

    def span(name: str, form: str) -> str:
        values = [at[name] for at in measured]
        least, most = f"{min(values):{form}}", f"{max(values):{form}}"
        return f"{np.mean(values):{form}}" + (f" ({least} to {most})" if least != most else "")

    field = float(np.mean([np.abs(at["fields"]).max() for at in measured]))
    parts = [span("density", ".0%"), span("layer_density", ".1%"), span("live", ".3g"), span("largest", ".2g")]
    return [f"{len(measured)}", *parts, f"{field:.2g}"]


def _round(values: torch.Tensor) -> list[list[float]]:
    return [[float(f"{value:.3g}") for value in row] for row in values.tolist()]


@dataclass(frozen=True)
class Evolution(QuboStudy):
    """The first layer's couplings and fields at every 10th update."""

    name = "evolution"
    title = "QUBO matrices of the first MNIST layer during training"
    about = (
        f"{ABOUT} The layer has 16 inputs and 4 columns, hence a QUBO of 64 spins in four blocks of 16, which share "
        "their couplings. Where no column has a gradient there is nothing to solve, and such updates are left out. "
        "Figures show the first run that has all updates, tables cover all runs."
    )
    paper = "Figure, every 10th update: densely connected support in an otherwise sparse graph."
    work = staticmethod(matrices)
    small = {"seeds": 2, "updates": (0, 5, 10)}
    seeds: int = 5
    updates: tuple[int, ...] = UPDATES

    def jobs(self) -> Sequence[Job]:
        updates = list(self.updates)
        return [{"form": form, "seed": seed, "updates": updates} for form in FORMS for seed in range(self.seeds)]

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        body, claims = [], []
        drawn = {form: mnist_qubos.whole_run([run for run in results if run["form"] == form]) for form in FORMS}
        for form in FORMS:
            runs = [result["at"] for result in results if result["form"] == form]
            for number, update in enumerate(self.updates):
                body.append([form, str(update), *_cells([run[number] for run in runs])])
            every = [at for run in runs for at in run if at is not None]
            inside, overall = [at["density"] for at in every], [at["layer_density"] for at in every]
            detail = (
                f"{min(inside):.0%} to {max(inside):.0%} of a column's couplings are not zero, and "
                f"{min(overall):.1%} to {max(overall):.1%} of the layer's, in {len(every)} QUBOs"
            )
            text = f"The support of a column's QUBO is densely connected ({form})"
            source = of_the_paper(form == PRINTED)
            claims.append(with_verdict(text, min(inside) >= DENSE, detail, number="figure", source=source))
        bits, couplings = size(16, 10)
        claims.append(
            with_verdict(
                "The layer's graph is otherwise sparse",
                True,
                "by construction, not by measurement: as printed, columns are solved one by one, so that of 64 spins "
                "in four blocks at most 23.8 % of the pairs can be coupled; as released, one column of 16 inputs has "
                f"{bits} bits for 10 rows, coupled within a row: {2 * couplings / (bits * (bits - 1)):.1%} of pairs",
                number="figure",
            )
        )
        head = ["form", "update", "runs", "a column, 16 spins", "the layer, 64 spins"]
        head += ["columns with a gradient", "largest coupling", "largest field"]
        title = f"Density: share of pairs of spins that are coupled; mean of {self.seeds} seeds (least to most)"
        figures = [self._figure(form, run) for form, run in drawn.items()]
        return {
            "figures": [_layer_figure(drawn), *figures],
            "tables": [{"title": title, "head": head, "body": body}],
            "claims": claims,
        }

    def _figure(self, form: str, run: Mapping[str, Any]) -> dict[str, Any]:
        measured = [(update, at) for update, at in zip(self.updates, run["at"], strict=True) if at is not None]
        panels = [
            {"title": f"update {update}", "values": _upper(at, at["fields"][at["strongest"]])}
            for update, at in measured
        ]
        caption = (
            "The column with the largest gradient, over 16 spins: couplings 2Q above the diagonal, fields s on it, "
            "both in units of the matrix's largest coupling; larger fields get the last colour. Empty cells above "
            f"the diagonal are couplings that are exactly zero. Seed {run['seed']}."
        )
        text = {"title": f"One column of the first layer, {form}", "caption": caption}
        return {"name": form.replace(" ", "-"), **text, **LOOK, "columns": 3, "panels": panels}
