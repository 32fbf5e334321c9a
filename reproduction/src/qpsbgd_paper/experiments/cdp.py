"""The direction test: do projected gradients point where the full batch's gradient points?"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from qpsbgd.analysis import DirectionTest, FullBatch, direction_test, full_batch
from qpsbgd.optim import QPSBGD
from qpsbgd_paper.experiments.adult_convergence import GAINS
from qpsbgd_paper.experiments.mnist import MnistPairs, split
from qpsbgd_paper.framework.claims import Claim, Source, of_the_paper
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import BUILDERS, SCALES, SPINS, Line, Options, printed, rates, summed
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import BinaryMLP, fit_classifier

PAPER = {
    "qpsbgd-printed": (
        (2285, 3915, 10.4),
        (2199, 3647, 12.4),
        (2311, 3886, 11.8),
        (2334, 3984, 10.8),
        (2356, 3990, 11.4),
    ),
    "bc-sign": ((2334, 4626, 0.61), (732, 1176, 8.39), (339, 630, 1.91), (2559, 4702, 6.06), (2103, 4683, -6.9)),
}
"""Same direction, compared, Z of the paper's five runs."""

PRINTED = {"": "mean loss", "-sum": "summed loss", **{f"-{scale:g}": f"κ = {scale:g}" for scale in SCALES}}
"""The readings of the paper's equation, in the order of `printed`, by what is added to the line's name."""

Z = Metric("z", "Z of the direction test")
ABOVE = Metric("z_above", "share of runs with Z above 1.96")


def train(
    *, pair: str, gain: Any, constant: bool, batch: int, steps: int, method: str, options: Options, seed: int, **_: Any
) -> Result:
    """One run: every update's directions compared with the gradient of all training images before it."""
    inputs, targets = split(pair, seed=seed, choosing=False)[:2]
    torch.manual_seed(seed)
    model = BinaryMLP([16, 4, 4, 2], gain=gain, constant=constant)
    optimizer = BUILDERS[method](model, options, steps)
    seen: list[FullBatch] = []

    def look() -> None:
        seen[:] = full_batch(model, (inputs, targets), F.cross_entropy)

    def compare() -> DirectionTest:
        grads: list[Any] = [part.layer.weight.grad for part in seen]
        if isinstance(optimizer, QPSBGD):
            # A column without gradient is not updated.
            grads = [s.spins.T * grad.any(1, keepdim=True) for s, grad in zip(optimizer.solutions, grads, strict=True)]
        return direction_test(grads, [part.gradient for part in seen])

    how: dict[str, Any] = {"optimizers": [optimizer], "before": look, "measure": compare, "summed": summed(options)}
    tests = fit_classifier(model, (inputs, targets), batch=batch, steps=steps, **how)
    total = sum(tests, DirectionTest(0, 0))
    shares = [test.k / test.n if test.n else 0.5 for test in tests]
    return {"share": shares, "k": total.k, "n": total.n, Z.key: total.z, ABOVE.key: float(total.z > 1.96)}


@dataclass(frozen=True)
class Cdp(Comparison):
    """MNIST 1/2 at the paper's settings; every update's directions against the gradient of all 500 images."""

    name = "cdp"
    title = "Direction test on MNIST"
    about = (
        "Network and data of the experiment mnist, digits 1/2, paper's settings: 50 updates of 10 images. At every "
        "update, k of n entries of the projected gradient have the sign of the full batch's gradient, entries that are "
        "zero in either left out; Z = (k − n/2)/√(n/4), and above 1.96 random directions are ruled out at 95 %. At "
        "gain 1 saturated units leave fewer entries than the 3647 to 3990 that the paper has for QP-SBGD; at gain 1/√n "
        "more are left, and the paper's counts lie in their range. Rows of the paper's signSGD compare up to 4702 "
        "entries, more than 88 weights at 50 updates have; the paper does not state its number of updates."
    )
    paper = "Tables: Z of 10.4 to 12.4 for QP-SBGD, of −6.9 to 8.39 for signSGD."
    chosen_in_view = "The features, as in the experiment mnist; the second gain, by the number of entries compared."
    metrics = (Z, ABOVE)
    series = (Series("share", "share of entries with the gradient's sign"),)
    chosen_by = Z
    # Gain 1, and the gain under which about as many entries are compared as in the paper.
    by_case = {name: {"pair": "1/2", "gain": gain, "constant": False, "batch": 10} for name, gain in GAINS.items()}
    extra = ("k", "n")
    work = staticmethod(train)
    needs = MnistPairs.needs
    small = {"seeds": 2, "steps": 15}
    seeds: int = 10
    choosing_seeds: int = 0
    steps: int = 50

    def lines(self, case: Case) -> Mapping[str, Line]:
        return {
            SPINS: Line("QP-SBGD (spins, exact)", "qpsbgd", rates(0.03, projection="spins", solver="exact"), "ours"),
            **{
                f"qpsbgd-printed{added}": Line(f"QP-SBGD as printed (exact), {loss}", "qpsbgd", (options,), "paper")
                for (added, loss), options in zip(PRINTED.items(), printed(0.03, solver="exact"), strict=True)
            },
            "bc-sign": Line("signSGD", "bc-sign", rates(0.03)),
        }

    def claims(self) -> Sequence[Claim]:
        claims = []
        for case in self.cases():
            forms: list[tuple[str, str, Source]] = [(SPINS, "spins", "aim")]
            whose = of_the_paper(case.settings["gain"] == 1)
            forms += [(f"qpsbgd-printed{added}", loss, whose) for added, loss in PRINTED.items()]
            for line, form, source in forms:
                number = "10.4 to 12.4" if source != "aim" else ""
                text = f"QP-SBGD has a Z above 1.96 in every run ({form})"
                claims.append(Claim(text, line, ABOVE.key, (case.name,), level=1.0, source=source, number=number))
                number = f"{number} against −6.9 to 8.4" if number else ""
                text = f"QP-SBGD has a larger Z than signSGD ({form})"
                claims.append(Claim(text, line, Z.key, (case.name,), ("bc-sign",), source=source, number=number))
        return claims

    def summary(self, *, folder: Path) -> dict[str, Any]:
        summary = super().summary(folder=folder)
        body = []
        for case in summary["cases"]:
            for row in case["rows"]:
                paper = PAPER.get(row["line"], ()) if case["case"] != "gain 1" else ()
                figures = zip(row["extra"]["k"], row["extra"]["n"], row["values"][Z.key], strict=True)
                for (k, n, z), theirs in itertools.zip_longest(figures, paper, fillvalue=("–", "–", "–")):
                    ours = [f"{k}", f"{n}", z if isinstance(z, str) else f"{z:.1f}"]
                    body.append([case["label"], row["label"], *ours, *(str(value) for value in theirs)])
        head = ["setting", "method", "same direction", "compared", "Z", "paper: same", "paper: compared", "paper: Z"]
        return {**summary, "tables": [{"title": "Every run", "head": head, "body": body}]}
