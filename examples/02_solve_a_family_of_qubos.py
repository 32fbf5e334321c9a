"""Many QUBOs with one quadratic part: build a family, solve it in several ways, and compare the energies."""

import time

import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver

torch.manual_seed(0)
rows = torch.randn(60, 32, dtype=torch.float64)
family = QuboFamily(rows.T @ rows, 20 * torch.randn(32, 100, dtype=torch.float64))
print(family)

optimum = make_solver("exact").solve(family)  # for up to about 32 spins
print(f"{int(optimum.proven_optimal.sum())} of {family.num_columns} columns proven optimal")

# Wider families need a search: the longer it is, the more columns it solves.
searches = ("descent", {}), ("descent", {"tabu": 200}), ("annealing", {"sweeps": 200, "reads": 10})
for name, options in (("exact", {}), *searches):
    solver = make_solver(name, **options)
    solver.solve(family)  # warm up
    start = time.perf_counter()
    solution = solver.solve(family)
    milliseconds = 1e3 * (time.perf_counter() - start)
    gap = (solution.energies - optimum.energies).mean()
    solved = (solution.energies <= optimum.energies + 1e-9).double().mean()
    title = f"{name} {options or ''}"
    print(f"{title:39} {milliseconds:6.1f} ms   mean gap to the optimum {gap:7.4f}   solved {solved:.0%}")

bqm = family.to_bqm(0)
print("column 0 as a dimod model:", bqm.num_variables, "spins,", bqm.num_interactions, "couplings")
