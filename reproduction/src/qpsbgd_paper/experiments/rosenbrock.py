"""P-SBGD on a plain function: Rosenbrock's valley over numbers written in spins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.analysis import minimize
from qpsbgd.nn import sign
from qpsbgd_paper.framework import methods
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import RANDOM, Line, Options, SolverChoice
from qpsbgd_paper.framework.runs import Result

FOUND = Metric("found", "lowest value found", higher=False)
MARGIN = 0.05
"""Difference up to which two values of the function count as equal; its minimum is 0, random values are hundreds."""

CASES: Mapping[str, Job] = {
    "2 numbers of 1 bit": {"numbers": 2, "bits": 1},
    "2 numbers of 6 bits": {"numbers": 2, "bits": 6},
    "5 numbers of 6 bits": {"numbers": 5, "bits": 6},
}


def valley(spins: Tensor, *, numbers: int, bits: int) -> Tensor:
    """The terms (1 − xᵢ, 10 (xᵢ₊₁ − xᵢ²)) of numbers given by spins (numbers · bits,), most significant first."""
    places = 2.0 ** -torch.arange(bits)
    x = (spins.reshape(numbers, bits) * places).sum(1)
    return torch.cat([1 - x[:-1], 10 * (x[1:] - x[:-1] ** 2)])


def train(*, numbers: int, bits: int, steps: int, method: str, options: Options, seed: int, **_: Any) -> Result:
    """One run: the lowest value visited so far, after every update."""
    start = 0.5 * (2 * torch.rand(numbers * bits, generator=torch.Generator().manual_seed(seed)) - 1)

    def terms(spins: Tensor) -> Tensor:
        return valley(spins, numbers=numbers, bits=bits)

    if method == "minimize":
        given = dict(options)
        solver = methods.chosen_solver(given.pop("solver"))
        minimum = minimize(
            terms, lambda y: y.square().sum(), start, steps=steps, solver=solver, stop_at_fixed_point=False, **given
        )
        values = minimum.values
    elif method == RANDOM:
        values = _random_values(terms, len(start), steps=steps, seed=seed)
    else:
        values = _by_gradient(terms, start, steps=steps, lr=options["lr"], signs=method == "sign")
    lowest = torch.tensor(values).cummin(0).values.tolist()
    return {"value": lowest, FOUND.key: lowest[-1]}


def _by_gradient(
    terms: Callable[[Tensor], Tensor], latent: Tensor, *, steps: int, lr: float, signs: bool
) -> list[float]:
    """Values of BinaryConnect on a function: the gradient at the spins moves the latent numbers."""
    values = []
    for _ in range(steps + 1):
        spins = sign(latent).requires_grad_()
        value = terms(spins).square().sum()
        (grad,) = torch.autograd.grad(value, spins)
        values.append(value.item())
        latent = latent - lr * (grad.sign() if signs else grad)
    return values


def _random_values(terms: Callable[[Tensor], Tensor], count: int, *, steps: int, seed: int) -> list[float]:
    """Values of as many random points as an optimiser visits."""
    generator = torch.Generator().manual_seed(seed)
    points = [sign(torch.rand(count, generator=generator) - 0.5) for _ in range(steps + 1)]
    return [terms(point).square().sum().item() for point in points]


@dataclass(frozen=True)
class Rosenbrock(Comparison):
    """f(x) = (1 − x₁, 10 (x₂ − x₁²), …), E(y) = ‖y‖², over every pair of neighbours."""

    name = "rosenbrock"
    title = "Rosenbrock's function: P-SBGD without a network"
    about = (
        "Numbers between −2 and 2 written in spins ±1 (one bit: ±1), E = Σ (1 − xᵢ)² + 100 (xᵢ₊₁ − xᵢ²)², 100 updates "
        "from random starts, scored by the lowest value visited; latent numbers are unbounded for all methods. The "
        "optimum of the 6-bit numbers is the best that their grid allows."
    )
    paper = "Mentioned only: five runs, one minute of QPU time in all."
    metrics = (FOUND,)
    series = (Series("value", "lowest value so far"),)
    chosen_by = FOUND
    by_case = CASES
    work = staticmethod(train)
    small = {"seeds": 2, "choosing_seeds": 0, "steps": 20}
    seeds: int = 10
    choosing_seeds: int = 2
    steps: int = 100
    solver: SolverChoice | None = None

    def lines(self, case: Case) -> Mapping[str, Line]:
        def line(label: str, kind: Any, solver: Any, scale: Any) -> Line:
            return Line(label, "minimize", methods.rates(0.03, 0.1, 0.3, solver=solver, scale=scale), kind)

        annealer = dict(methods.SIMULATED_ANNEALER)
        lines = {
            "qpsbgd": line("P-SBGD (exact)", "ours", "exact", 1.0),
            "qpsbgd-printed": line("P-SBGD as printed (exact)", "paper", "exact", "literal"),
            "qpsbgd-annealed": line("P-SBGD (simulated annealer)", "variant", annealer, 1.0),
        }
        if self.solver is not None:
            name = methods.solver_name(self.solver)
            lines["named"] = line(f"P-SBGD ({name})", "variant", self.solver, 1.0)
            lines["named-printed"] = line(f"P-SBGD as printed ({name})", "variant", self.solver, "literal")
        return lines | {
            "bc-sign": Line("signSGD", "sign", methods.rates(0.03, 0.1, 0.3)),
            "bc-sgd": Line("SGD", "sgd", methods.rates(1e-4, 1e-3, 1e-2)),
            RANDOM: Line("control: best of random points", RANDOM, ({},), "control"),
        }

    def claims(self) -> Sequence[Claim]:
        text = "P-SBGD finds values at least as low as gradients do"
        says: dict[str, Any] = {"relation": "at least", "margin": MARGIN, "source": "aim"}
        return [
            Claim(f"{text} ({case})", "qpsbgd", FOUND.key, (case,), ("bc-sign", "bc-sgd"), **says) for case in CASES
        ]
