"""What gives QUBOs with larger spectral gaps, and does it help an annealer and training? The paper's future work."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qpsbgd.analysis import full_batch
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim import QPSBGD
from qpsbgd.projections import Printed
from qpsbgd.solvers import make_solver
from qpsbgd_paper.chip_studies.gap_forms import BASE, COLUMNS, SCALES, forms_of, minima, sampled, shrunk, virtual_chip
from qpsbgd_paper.chip_studies.schedules import ADVANTAGE, LINEAR
from qpsbgd_paper.chip_studies.spectrum import spectral_gap
from qpsbgd_paper.datasets.adult import training_rows
from qpsbgd_paper.framework.claims import Judged, deviation, paired, stated, verdict
from qpsbgd_paper.framework.experiment import Job, Study
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import BinaryMLP, accuracy, batches, fit, fit_classifier
from qpsbgd_qubo.annealers.tiles import tiles_of
from qpsbgd_qubo.ising import in_range, ising_columns

ERRORS = {"usual": (0.02, 0.01), "high": (0.2, 0.1)}
"""Of fields and couplings: what a `VirtualChip` has by default, and ten times as much."""
TRAINING: Mapping[str, Mapping[str, Any]] = {
    "scale 0.25": {"scale": 0.25},
    "scale 1": {},
    "scale 4": {"scale": 4.0},
    "scale 8": {"scale": 8.0},
    "scale 1, no momentum": {"momentum": 0.0},
    "scale 4, no momentum": {"scale": 4.0, "momentum": 0.0},
    "scale 1, chain strength 0.1": {"solver": {"chain_strength": 0.1}},
    "scale 1, best of 10 reads": {"solver": {"num_reads": 10}},
    "scale 1, descent after the read": {"solver": {"descent": True}},
    "scale 4, descent after the read": {"scale": 4.0, "solver": {"descent": True}},
}
"""Scale of `Printed`, momentum, and options of the chip's solver; 1, 0.9, one read and no descent if not said."""


class Layer(NamedTuple):
    """Whose QUBOs are taken: layer 0 of a network on Adult or layer 1 of one on digits, its inputs and all widths."""

    layer: int
    inputs: int
    widths: tuple[int, ...]


SOURCES: Mapping[str, Layer] = {
    "adult 3": Layer(0, 3, (3, 5, 2)),
    "adult 6": Layer(0, 6, (6, 5, 2)),
    "digits 6": Layer(1, 6, (16, 6, 10)),
}
LIKE = ("as printed", "momentum 0.9", "pulled 0.25 towards the sign vector", "pulled 1 towards the sign vector")
"""The forms beside the scales that differ in their problem, not only in how it is sent."""


def compute(*, kind: str, seed: int, options: Mapping[str, Any]) -> Result:
    """A job: QUBOs of one update in all forms, or a training run."""
    return train(seed=seed, **options) if kind == "training" else qubos(seed=seed, **options)


def qubos(*, source: str, batch: int, reads: int, seed: int) -> Result:
    """Gap and share of optimal reads of every form of one update's QUBOs."""
    records, gain = _updates(source, batch, seed)
    forms = forms_of(records, gain, seed=seed)
    original = forms[BASE].family
    found: dict[str, Any] = {}
    for name, sent in forms.items():
        gaps = {"chip": LINEAR, "GHz": ADVANTAGE}
        chip = [shrunk(in_range(c), f) for c, f in zip(ising_columns(sent.family), sent.shrink, strict=True)]
        of_form: dict[str, Any] = {
            unit: [spectral_gap(column, schedule=schedule, points=21).smallest for column in chip]
            for unit, schedule in gaps.items()
        }
        best = minima(sent.family)
        signs = torch.where(sent.family.linear > 0, -1.0, 1.0).double()
        of_form["sign"] = (sent.family.energies(signs) <= best).double().mean().item()
        for level, errors in ERRORS.items():
            spins = sampled(sent, errors=errors, reads=reads, seed=seed)
            of_form[level] = (sent.family.energies(spins) <= best).double().mean(0).tolist()
            of_form[f"{level} original"] = (original.energies(spins) <= minima(original)).double().mean(0).tolist()
        found[name] = of_form
    return {"forms": found}


def train(*, form: str, solver: str, steps: int, seed: int) -> Result:
    """Accuracy on held-out digits of one binary layer of 16 inputs, mean of the second half of training."""
    (inputs, targets), (held_inputs, held_targets) = _small_digits()
    torch.manual_seed(seed)
    model = BinaryMLP([16, 10], gain="fan_in")
    h_error, j_error = ERRORS["high"]
    noisy = {"size": 4, "num_reads": 1, "descent": False, "h_error": h_error, "j_error": j_error, "seed": seed}
    options = dict(TRAINING[form])
    noisy |= options.pop("solver", {})
    chosen = make_solver(solver, **noisy) if solver == "virtual-qpu" else solver
    projection = Printed(scale=options.get("scale", 1.0), solver=chosen)
    optimizer = QPSBGD(model, lr=0.03, projection=projection, momentum=options.get("momentum", 0.9))
    how: dict[str, Any] = {"optimizers": [optimizer], "measure": lambda: accuracy(model(held_inputs), held_targets)}
    curve = fit_classifier(model, (inputs, targets), batch=32, steps=steps, **how)
    return {"accuracy": statistics.mean(curve[steps // 2 :])}


def _updates(source: str, batch: int, seed: int) -> tuple[list[LayerRecord], float]:
    """What a layer saw in ten updates, four columns of it, and its gain.

    Updates without a gradient, as single rows may give, are made but not counted: their QUBOs have no gap.
    """
    layer, width, widths = SOURCES[source]
    inputs, targets = training_rows("balanced") if layer == 0 else _small_digits()[0]
    torch.manual_seed(seed)
    if layer == 0:
        inputs = inputs[:, torch.randperm(inputs.shape[1])[:width]]
    model = BinaryMLP(widths, gain="fan_in")
    records = []

    def loss(rows: Tensor) -> Tensor:
        seen = full_batch(model, (inputs[rows], targets[rows].long()), F.cross_entropy)[layer].record
        record = LayerRecord(seen.inputs, seen.output_grads[:, :COLUMNS])
        if record.output_grads.abs().max() > 1e-6:  # less is rounding
            records.append(record)
        return F.cross_entropy(model(inputs[rows]), targets[rows].long())

    optimizer = QPSBGD(model, lr=0.03, projection=Printed(scale=1.0, solver="exact"), momentum=0.9)
    for rows in batches(len(inputs), batch, 200):
        fit(model, loss, rows=[rows], optimizers=[optimizer])
        if len(records) == 10:
            break
    else:
        raise RuntimeError(f"{source}, batch {batch}, seed {seed}: fewer than ten of 200 updates had a gradient")
    gain: float = model.layers[layer].gain  # type: ignore[assignment]
    return records, gain


@cache
def _small_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Digits of 4 × 4 pixels: training and validation part."""
    from qpsbgd_paper.experiments.digits import split_digits

    parts = []
    for pixels, digits in split_digits("validation"):
        parts.append((F.avg_pool2d(pixels.reshape(-1, 1, 8, 8), 2).flatten(1), digits))
    return parts[0], parts[1]


Forms = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _gathered(qubos: Forms, name: str, key: str, **where: Any) -> list[float]:
    """All values of a form's figure, one per column or per source and seed."""
    found: list[float] = []
    for options, forms in qubos:
        if all(options[part] == value for part, value in where.items()):
            value = forms[name][key]
            found += value if isinstance(value, list) else [value]
    return found


def _forms_table(qubos: Forms, batch: int) -> dict[str, Any]:
    body = []
    for name in qubos[0][1]:
        gaps = [_gathered(qubos, name, unit, batch=batch) for unit in ("chip", "GHz")]
        keys = ("usual", "high", "usual original", "high original", "sign")
        shares = [statistics.mean(_gathered(qubos, name, key, batch=batch)) for key in keys]
        body.append([name, *(f"{statistics.median(g):.3g}" for g in gaps), *(f"{100 * s:.1f}" for s in shares)])
    head = ["form", "gap, linear", "gap, GHz", "optimal reads, %", "optimal reads, large errors, %"]
    head += ["optimal for scale 1, %", "optimal for scale 1, large errors, %", "optimum is the sign vector, %"]
    title = f"Batch {batch}: median smallest gap, and shares over sources and seeds"
    return {"title": title, "head": head, "body": body}


def _training_table(runs: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    body = []
    for form in dict.fromkeys(form for form, _ in runs):
        both = [runs.get((form, solver)) for solver in ("exact", "virtual-qpu")]
        body.append([form, *(f"{statistics.mean(v):.3f} ± {deviation(v):.3f}" if v else "–" for v in both)])
    head = ["form", "exact", "one read of a chip with large errors"]
    return {"title": "Digits of 16 pixels: accuracy, mean of the second half of training", "head": head, "body": body}


def _scale_figure(qubos: Forms) -> dict[str, Any]:
    panels = []
    share = "share of optimal reads"
    for key, y_label in (("chip", "smallest gap (median)"), ("usual", share), ("high", share)):
        lines = []
        groups = dict.fromkeys((options["source"], options["batch"]) for options, _ in qubos)
        for colour, (source, batch) in enumerate(groups):
            values = [_gathered(qubos, f"scale {scale:g}", key, source=source, batch=batch) for scale in SCALES]
            y = [statistics.median(v) if key == "chip" else statistics.mean(v) for v in values]
            lines.append({"x": list(SCALES), "y": y, "label": f"{source}, batch {batch}", "colour": colour})
        title = {"chip": "gap in the chip's ranges", "usual": "usual errors", "high": "large errors"}[key]
        panels.append({"title": title, "x_label": "scale κ", "y_label": y_label, "log": "x", "lines": lines})
    caption = "The larger the scale, the more fields outweigh couplings, and the more the optimum is the sign vector."
    return {"name": "scale", "title": "Scale, gap and reads", "caption": caption, "kind": "lines", "panels": panels}


def _gap_and_reads(qubos: Forms, level: str) -> tuple[list[float], list[float]]:
    """Gap and share of optimal reads of every column of every form with a problem of its own."""
    names = [*(f"scale {scale:g}" for scale in SCALES), *LIKE]
    both = ([value for name in names for value in _gathered(qubos, name, key)] for key in ("chip", level))
    gaps, shares = both
    return gaps, shares


def _gap_figure(qubos: Forms) -> dict[str, Any]:
    panels = []
    for level, title in (("usual", "usual errors"), ("high", "large errors")):
        gaps, shares = _gap_and_reads(qubos, level)
        labels = {"x_label": "smallest gap in the chip's ranges", "y_label": "share of optimal reads"}
        points = {"x": gaps, "y": shares, "style": "points", "colour": 1, "label": "a column in one form"}
        panels.append({"title": title, **labels, "lines": [points]})
    caption = "All scales, QUBOs as printed, with momentum, and pulled towards the sign vector."
    return {"name": "reads", "title": "Gap and reads", "caption": caption, "kind": "lines", "panels": panels}


def _claims(qubos: Forms, runs: Mapping[tuple[str, str], Sequence[float]]) -> list[Judged]:
    found: list[Judged] = [_diagonal_claim(qubos)]
    shared = "one factor for all columns"
    tests: list[tuple[str, str, str, str]] = [
        ("A larger scale gives a larger gap in the chip's ranges (8 against 1)", "scale 8", BASE, "chip"),
        ("A larger scale gives more optimal reads (8 against 1)", "scale 8", BASE, "usual"),
        ("A larger scale gives more optimal reads on a chip with large errors (8 against 1)", "scale 8", BASE, "high"),
        ("Momentum gives more optimal reads", "momentum 0.9", BASE, "usual"),
        ("One factor per column gives more optimal reads than one for all columns", BASE, shared, "usual"),
        ("The same for QUBOs as printed", "as printed", f"as printed, {shared}", "usual"),
    ]
    for text, ours, theirs, key in tests:
        found.append(paired(text, _gathered(qubos, ours, key), _gathered(qubos, theirs, key)))
    for level, words in (("usual", "usual"), ("high", "large")):
        gaps, shares = _gap_and_reads(qubos, level)
        rank = float(np.corrcoef(_ranks(gaps), _ranks(shares))[0, 1])
        noise = 2 / len(gaps) ** 0.5
        text = f"A larger gap goes with more optimal reads ({words} errors)"
        detail = f"rank correlation {rank:.2f} over {len(gaps)} columns in all forms, noise {noise:.2g} if all were "
        found.append(stated(text, verdict(rank, noise=noise), f"{detail}independent", source="beyond"))
    trained = [
        (form, BASE) for form in ("scale 4", "scale 8", "scale 1, chain strength 0.1", "scale 1, best of 10 reads")
    ]
    for form, against in [*trained, ("scale 4, descent after the read", "scale 1, descent after the read")]:
        if (form, "virtual-qpu") in runs:
            text = f"On a chip with large errors, {form} trains better than {against}"
            found.append(paired(text, runs[form, "virtual-qpu"], runs[against, "virtual-qpu"]))
    return found


def _ranks(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """The place of every value in their order; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which])


def _diagonal_claim(qubos: Forms) -> Judged:
    def both(key: str) -> tuple[list[float], list[float]]:
        return _gathered(qubos, "with another diagonal", key), _gathered(qubos, BASE, key)

    furthest = max(abs(a - b) for a, b in zip(*both("chip"), strict=True))
    same = all(a == b for key in ERRORS for a, b in zip(*both(key), strict=True))
    detail = f"gaps differ by {furthest:.1g} at most; the shares of optimal reads are the same: {same}"
    return stated("A diagonal added to Q changes neither gap nor reads", same and furthest < 1e-9, detail, source="aim")


@dataclass(frozen=True)
class GapOptions(Study):
    """QUBOs of real updates in many forms; then training on a chip with large errors."""

    name = "gap-options"
    title = "Larger spectral gaps"
    about = (
        "QUBOs of the first layer of networks on Adult (3 and 6 inputs) and of the second layer of a network on digits "
        "(6 inputs), after ten updates, in many forms: the smallest gap once the QUBO fills the chip's ranges (fields "
        "±4, couplings ±1; H = −A/2 Σ X + B/2 H_problem), and how often a read of the virtual chip is a minimum. Then "
        "digits of 16 pixels, one binary layer, trained on a chip with large errors."
    )
    paper = "Conclusion: QUBOs with larger spectral gaps are future work."
    work = staticmethod(compute)
    small = {"seeds": 1, "reads": 20, "sources": ("adult 3",), "steps": 5, "training": (BASE,)}
    seeds: int = 2
    reads: int = 100
    sources: tuple[str, ...] = tuple(SOURCES)
    steps: int = 60
    training: tuple[str, ...] = tuple(TRAINING)

    def jobs(self) -> Sequence[Job]:
        """QUBOs by source, batch and seed; then training runs."""
        found: list[Job] = [
            {"kind": "qubos", "seed": seed, "options": {"source": source, "batch": batch, "reads": self.reads}}
            for source in self.sources
            for batch in (1, 16)
            for seed in range(self.seeds)
        ]
        return found + [
            {"kind": "training", "seed": seed, "options": {"form": form, "solver": solver, "steps": self.steps}}
            for form in self.training
            for solver in ("exact", "virtual-qpu")
            if solver == "virtual-qpu" or "solver" not in TRAINING[form]
            for seed in range(self.seeds)
        ]

    def prepare(self) -> None:
        """Find the data, and the chip's tiles."""
        training_rows("balanced")
        _small_digits()
        for width in {SOURCES[source].inputs for source in self.sources} | {16}:
            tiles_of(virtual_chip(ERRORS["usual"], 0)[1], width)

    def shown(self, results: Sequence[Result]) -> dict[str, Any]:
        """Gaps and shares of optimal reads of every form, accuracies, and what helps."""
        pairs = list(zip(self.jobs(), results, strict=True))
        qubos = [(job["options"], result["forms"]) for job, result in pairs if job["kind"] == "qubos"]
        runs: dict[tuple[str, str], list[float]] = {}
        for job, result in pairs:
            if job["kind"] == "training":
                key = (job["options"]["form"], job["options"]["solver"])
                runs.setdefault(key, []).append(result["accuracy"])
        return {
            "figures": [_scale_figure(qubos), _gap_figure(qubos)],
            "tables": [*(_forms_table(qubos, batch) for batch in (1, 16)), _training_table(runs)],
            "claims": _claims(qubos, runs),
        }
