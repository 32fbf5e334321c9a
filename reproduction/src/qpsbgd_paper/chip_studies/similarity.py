"""How alike the samples of lowest energy are: the paper's matrix of Jaccard similarities, on a simulated chip."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from qpsbgd.qubo import QuboFamily
from qpsbgd_paper.chip_studies import mnist_qubos
from qpsbgd_paper.chip_studies.mnist_qubos import ABOUT, LAYERS, PRINTED
from qpsbgd_paper.chip_studies.read_energies import CHIP, ReadStudy, chip
from qpsbgd_paper.framework.claims import Judged, Source, of_the_paper, with_verdict
from qpsbgd_paper.framework.runs import Result

AT_MOST = 0.45  # the largest similarity that the paper's "around 0.4" is taken to allow


def jaccard(spins: Tensor) -> Tensor:
    """Similarity of every two spin vectors by their sets of +1 spins: (k, n) → (k, k), in double precision.

        J(a, b) = |A ∩ B| / |A ∪ B|,   A = {i : aᵢ = +1}

    Two vectors without any +1 spin are equal and have similarity 1. Independent random spins have 1/3 on average.
    """
    up = (spins > 0).numpy()
    return torch.from_numpy(1 - cdist(up, up, "jaccard"))


def lowest(spins: Tensor, energies: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` different samples of lowest energy, (k, n) and (k,), equal ones in the order of their spins."""
    different, which = torch.unique(spins, dim=0, return_inverse=True)  # sorted by spins
    energy = energies.new_empty(len(different))
    energy[which] = energies
    # Rounding must not decide between samples of equal energy.
    order = energy.double().round(decimals=9).sort(stable=True).indices[:count]
    return different[order], energy[order]


def compare(*, form: str, layer: int, seed: int, updates: Sequence[int], reads: int, size: int, count: int) -> Result:
    """Similarities of the lowest samples at these updates; None where the layer has no gradient."""
    solver = chip(reads=reads, size=size)
    compared = []
    for layers in mnist_qubos.qubos(form, seed=seed, updates=updates):
        live = mnist_qubos.live_columns(layers[layer])
        family = mnist_qubos.of_columns(layers[layer], live).to(torch.float64) if live else None
        compared.append(None if family is None else _measure(solver.sample(family).spins, family, count))
    return {"form": form, "layer": layer, "seed": seed, "at": compared}


def _measure(spins: Tensor, family: QuboFamily, count: int) -> dict[str, Any]:
    """Similarities of joint reads (reads, n, m), whose energy is the sum over the columns."""
    energies = family.energies(spins).sum(1)
    joint = spins.transpose(1, 2).reshape(len(spins), -1)
    kept, _ = lowest(joint, energies, count=count)
    matrix = jaccard(kept)
    pairs = matrix[tuple(torch.triu_indices(len(kept), len(kept), 1))]
    return {
        "spins": joint.shape[1],
        "different": len(torch.unique(joint, dim=0)),
        "matrix": [[round(value, 4) for value in row] for row in matrix.tolist()],
        "largest": float(pairs.max()) if len(pairs) else 1.0,
        "mean": float(pairs.mean()) if len(pairs) else 1.0,
        "below": float((pairs <= AT_MOST).double().mean()) if len(pairs) else 0.0,
    }


def _cells(every: Sequence[Mapping[str, Any]]) -> list[str]:
    def span(name: str, form: str) -> str:
        values = [at[name] for at in every]
        return f"{np.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    return [span("largest", ".2f"), span("mean", ".2f"), span("below", ".0%"), span("different", ".0f")]


def _claims(name: str, every: Sequence[Mapping[str, Any]], *, source: Source) -> list[Judged]:
    largest, mean, below = (float(np.mean([at[key] for at in every])) for key in ("largest", "mean", "below"))
    share = f"{below:.0%} of the pairs have at most {AT_MOST:g}, on average over {len(every)} QUBOs; mean {mean:.2f}"
    most, none = "Most samples of lowest energy are dissimilar", "No two of them are more similar than about 0.4"
    far = f"largest {largest:.2f} on average"
    says: dict[str, Any] = {"hardware": True, "source": source}
    return [
        with_verdict(f"{most} ({name})", below > 0.5, share, number="matrix", **says),
        with_verdict(f"{none} ({name})", largest <= AT_MOST, far, number="about 0.4", **says),
    ]


@dataclass(frozen=True)
class Similarity(ReadStudy):
    """The ten different samples of lowest energy of a whole layer, every two compared."""

    name = "similarity"
    title = "Similarity of the samples of lowest energy"
    about = (
        f"{ABOUT} A sample is one read of all of a layer's columns that have a gradient: 8 spins in the third layer, "
        "up to 64 in the first. Of 1000 reads, the 10 distinct ones of lowest energy are compared by |A ∩ B| / |A ∪ "
        "B| of their sets of +1 spins; two empty sets count as equal, and samples of equal energy are ordered by "
        f"their spins. Independent random spins have 1/3 on average. {CHIP}"
    )
    paper = "Matrix of the third layer: all fairly dissimilar, at most around 0.4."
    work = staticmethod(compare)
    seeds: int = 4
    count: int = 10

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        panels: dict[int, list[dict[str, Any]]] = {}
        body, claims = [], []
        for layer, form, runs, every in self.by_form(results):
            panels.setdefault(layer, []).append(self._panel(form, mnist_qubos.whole_run(runs)["at"]))
            body.append([LAYERS[layer], form, str(len(every)), *_cells(every)])
            claims += _claims(f"{LAYERS[layer]}, {form}", every, source=of_the_paper(form == PRINTED))
        figures = [self._figure(layer, layer_panels) for layer, layer_panels in panels.items()]
        head = ["layer", "form", "QUBOs", "largest", "mean", "pairs at most 0.45", "distinct samples"]
        title = f"Jaccard similarity of the {self.count} lowest samples; mean over updates and seeds (least to most)"
        return {"figures": figures, "tables": [{"title": title, "head": head, "body": body}], "claims": claims}

    def _panel(self, form: str, run: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        """The first update with as many different samples as are wanted, or with most."""
        measured = [(update, at) for update, at in zip(self.updates, run, strict=True) if at is not None]
        update, at = max(measured, key=lambda pair: len(pair[1]["matrix"]))
        text = [[f"{value:.2f}".lstrip("0") for value in row] for row in at["matrix"]]
        return {"title": f"{form}, update {update}, {at['spins']} spins", "values": at["matrix"], "text": text}

    def _figure(self, layer: int, panels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "name": LAYERS[layer].replace(" ", "-"),
            "title": f"Similarity of the {self.count} samples of lowest energy, {LAYERS[layer]}",
            "caption": "Samples in the order of their energies, the lowest first.",
            "kind": "matrices",
            "colours": "rising",
            "limits": [0, 1],
            "ticks": [str(number + 1) for number in range(self.count)],
            "colour_label": "Jaccard similarity",
            "panels": list(panels),
        }
