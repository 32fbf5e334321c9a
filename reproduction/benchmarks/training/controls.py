"""What does the QUBO add to a sign? Directions for latent weights, and spins by solvers from weak to strong.

    python benchmarks/training/controls.py [task=digits seed=3 …] [--seconds S]

Tasks are those of training.py, with learned scales, everything at the default rates; signs also at half and at double
the rate. `energies` are the shares of the best known drop in energy, from that of the sign vector, which each solver
reaches on the same problems: those of every 20th step of a run by "descent". Writes results/controls.json, for which
digits had the seeds 0 to 9.
"""

import time
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from benchmarks.study import study
from benchmarks.training.training_tasks import TASKS

from qpsbgd import QPSBGD, recommend
from qpsbgd.projections import Polar, Ridge, Spins
from qpsbgd.projections.protocol import zero_idle_units
from qpsbgd.solvers import Solver
from qpsbgd_qubo.solvers.exact.exact import Exact
from qpsbgd_qubo.solvers.search.descent import Descent

BUDGETS = {"digits": (2, 10), "adult-10": (4,)}
RATES = (0.5, 1.0, 2.0)


def signs(directions):
    return [replace(direction, values=direction.values.sign()) for direction in directions]


@dataclass(frozen=True)
class RidgeSigns(Ridge):
    """The signs of the ridge's answer."""

    name = "ridge-signs"

    def solve(self, systems):
        return signs(super().solve(systems))


@dataclass(frozen=True)
class PolarSigns(Polar):
    """The signs of the polar factor."""

    name = "polar-signs"

    def directions(self, inputs):
        return signs(super().directions(inputs))


@dataclass(frozen=True)
class GradientSigns(Polar):
    """The signs of the mean gradient."""

    name = "gradient-signs"

    def directions(self, inputs):
        pairs = zip(super().directions(inputs), inputs, strict=True)
        return signs([replace(d, values=zero_idle_units(d.state.gradient, part.grad)) for d, part in pairs])


SIGNS = {"ridge-signs": RidgeSigns(), "polar-signs": PolarSigns(), "gradient-signs": GradientSigns()}
SOLVERS = {
    **{f"{k} flips": Descent(max_flips=k) for k in (0, 4, 8, 16)},
    "descent": Descent(),
    "tabu": Descent(tabu=200),
}
"""All of them start every search at the sign vector, which is that of the mean gradient."""
BEST, PROVEN_UP_TO = Descent(tabu=2000, restarts=8), 64
"""The search for the best known energies, and the most spins for which optima are proven besides."""
PROJECTIONS = {"ridge": Ridge(), "polar": Polar()} | SIGNS
PROJECTIONS |= {f"spins, {name}": Spins(solver=solver) for name, solver in SOLVERS.items()}
"""Directions of latent weights by name."""


@dataclass(frozen=True)
class Compared(Solver):
    """Descent; on the families of every `every`th step, all solvers, with what they reach of the best known drop."""

    steps: list = field(default_factory=list)
    shares: list = field(default_factory=list)
    proven: list = field(default_factory=list)
    every: int = 20

    def _solve_all(self, families):
        if len(self.steps) % self.every == self.every - 1:
            for family in families:
                energies = np.array([solver.solve(family).energies for solver in (*SOLVERS.values(), BEST)])
                proven = np.zeros(family.num_columns, bool)
                if family.num_spins <= PROVEN_UP_TO:
                    proof = Exact(node_limit=200_000).solve(family)
                    energies[-1], proven = np.minimum(energies[-1], proof.energies), proof.proven_optimal
                drops = (energies[0] - energies).sum(1) / (energies[0] - energies.min(0)).sum()
                self.shares.append(drops[:-1])
                self.proven.append(float(proven.mean()))
        self.steps.append(len(families))
        return [self._solve(family) for family in families]

    def _solve(self, family):
        return Descent().solve(family)


def run(job):
    """The row of one run, with the seconds of CPU that it took."""
    torch.set_num_threads(1)
    begun, compared = time.process_time(), Compared()
    projection = Spins(solver=compared) if job["method"] == "energies" else PROJECTIONS[job["method"]]

    def make(model, steps):
        rate = job["rate"] * recommend(model, steps).lr
        return QPSBGD(model, rate, projection, relative=True, steps=steps, real=True)

    row = TASKS[job["task"]].run(make, budget=job["budget"], seed=job["seed"], choosing=False, scale="learned")
    row = {"score": row["score"], "cpu_seconds": round(time.process_time() - begun, 1)}
    if compared.shares:
        shares = dict(zip(SOLVERS, map(float, np.mean(compared.shares, axis=0)), strict=True))
        row |= {"families": len(compared.shares), "shares": shares, "proven": float(np.mean(compared.proven))}
    return job | row


JOBS = [
    {"task": task, "method": method, "budget": budget, "seed": seed, "rate": rate}
    for methods, seeds in ((PROJECTIONS, range(3)), (["energies"], [0]))
    for seed in seeds
    for task, budgets in BUDGETS.items()
    for budget in budgets
    for method in methods
    for rate in (RATES if method in SIGNS else [1.0])
]

if __name__ == "__main__":
    study("controls", run, JOBS)
