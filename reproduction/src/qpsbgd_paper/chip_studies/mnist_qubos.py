"""The QUBOs of a training run: the experiment mnist at the paper's settings, digits 1/2, by update and layer."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd_paper.experiments.mnist import SETTINGS, split
from qpsbgd_paper.framework.experiment import Study
from qpsbgd_paper.framework.methods import BUILDERS, Options, printed, rates, summed
from qpsbgd_paper.framework.training import BinaryMLP, fit_classifier
from qpsbgd_qubo.solvers.exact.exact import Exact

PAIR = "1/2"
PRINTED = "as printed"
FIRST, THIRD = 0, 2
LAYERS = {FIRST: "first layer", THIRD: "third layer"}
UPDATES = (0, 10, 20, 30, 40, 50)
FORMS: Mapping[str, Options] = {
    # As printed: what the experiment mnist chooses for this pair at the paper's settings, the summed loss.
    PRINTED: printed(0.03, solver="exact")[1],
    "ours": rates(0.03, projection="spins")[0],
}
ABOUT = (
    "QUBOs of the experiment mnist (16-4-4-2, digits 1/2, paper's settings, 50 updates of 10 images, exact solver), in "
    "two forms: as printed in the paper (summed loss), and ours (`Spins`: running means, so that QUBOs are dense)."
)


class QuboStudy(Study):
    """A study of these QUBOs."""

    needs = (partial(split, PAIR, seed=0, choosing=False),)


def qubos(form: str, *, seed: int, updates: Sequence[int] = UPDATES) -> list[list[QuboFamily]]:
    """The families of all layers at these updates (0 is the first) of a run of one of `FORMS`."""
    settings = SETTINGS["paper"]
    inputs, targets, _, _ = split(PAIR, seed=seed, choosing=False)
    torch.manual_seed(seed)
    model = BinaryMLP([16, 4, 4, 2], gain=settings["gain"], constant=settings["constant"])
    steps = max(updates) + 1
    solver = Watched(Exact())
    optimizer = BUILDERS["qpsbgd"](model, {**FORMS[form], "solver": solver}, steps)
    how: dict[str, Any] = {"optimizers": [optimizer], "summed": summed(FORMS[form])}
    fit_classifier(model, (inputs, targets), batch=settings["batch"], steps=steps, **how)
    return [[family for family, _ in solver.seen[update]] for update in updates]


def live_columns(family: QuboFamily) -> list[int]:
    """The columns with a gradient: the others have no linear term and are not updated."""
    return [number for number, live in enumerate(family.linear.any(0).tolist()) if live]


def of_columns(family: QuboFamily, columns: Sequence[int]) -> QuboFamily:
    """The family of these columns alone."""
    return QuboFamily(family.quadratic, family.linear[:, list(columns)], family.offset[list(columns)])


def strongest_column(family: QuboFamily) -> QuboFamily | None:
    """The column of largest gradient; None where no column has any."""
    if not live_columns(family):
        return None
    return of_columns(family, [int(family.linear.abs().amax(0).argmax())])


def varying(family: QuboFamily, energies: Tensor) -> Tensor:
    """Energies (…, m) without what is the same for all spins, as an annealer has them: less c and the trace of Q."""
    return energies.double() - family.offset.double() - family.quadratic.double().trace()


def whole_run(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first result that lacks none of the entries "at" updates, or that lacks fewest."""
    return min(results, key=lambda result: sum(entry is None for entry in result["at"]))


class Watched(Solver):
    """Another solver; `seen` has the families of every step, with the answers that it gave."""

    def __init__(self, inner: Solver) -> None:
        self._inner = inner
        self.seen: list[list[tuple[QuboFamily, Solution]]] = []

    def _solve(self, family: QuboFamily) -> Solution:
        return self.solve_all([family])[0]

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The other solver's answers."""
        solutions = self._inner.solve_all(families)
        # The optimiser goes on to change the tensors of its momentum.
        copies = [QuboFamily(each.quadratic.clone(), each.linear.clone(), each.offset.clone()) for each in families]
        self.seen.append(list(zip(copies, solutions, strict=True)))
        return solutions
