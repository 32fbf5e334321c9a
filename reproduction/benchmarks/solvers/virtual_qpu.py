"""How good are the answers of the virtual chip, and which chain strength is best?

Layers of 4 to 32 inputs, 16 columns each: Gaussian rows, and correlated ones (the sign of a sum of a shared and an own
Gaussian, as hidden layers have). The best of 50 reads of every column without descent is compared with the optimum: the
share of columns that reached it, the share of single reads, the mean energy gap (E − E₀)/(E_r − E₀), where E_r is the
mean energy of random spins, and the share of broken chains.

    python benchmarks/solvers/virtual_qpu.py        writes results/virtual_qpu.json
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools

import numpy as np
import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.measurements import print_rows, publish
from qpsbgd_qubo.annealers.reads import Reads
from qpsbgd_qubo.ising import largest_eigenvalue
from qpsbgd_qubo.solvers.exact.exact import Exact

SIZES, SCALES, COLUMNS, READS = (4, 10, 16, 32), (0.5, 1.0, 8.0), 16, 50
STRENGTHS = (0.1, 0.2, 0.4, 0.6, 1.0)
ERRORS = (0, 3, 10)
KINDS = ("gaussian", "correlated")


def layer(n, kind, scale):
    generator = torch.Generator().manual_seed(n)
    rows = torch.randn(2 * n, n, generator=generator)
    if kind == "correlated":
        rows = (rows + torch.randn(2 * n, 1, generator=generator)).sign()
    return binary_map(rows, torch.randn(2 * n, COLUMNS, generator=generator), scale=scale)


def energy_gaps(family, solution, *, best):
    """(E − E₀)/(E_r − E₀) of every column with a gradient: 0 for an optimum, 1 for the mean of random spins."""
    exact = family.to("cpu", torch.float64)
    least = exact.energies(best.spins.double())
    above = exact.energies(solution.spins.double()) - least
    span = exact.quadratic.trace() + exact.offset - least
    return (above / span)[(span > 1e-12) & exact.linear.any(0)]


def measure(family, best, **options):
    solver = make_solver("virtual-qpu", num_reads=READS, **{"descent": False, **options})
    solution = solver.solve(family)
    row = {
        "optimal": float((energy_gaps(family, solution, best=best) < 1e-5).double().mean()),
        "gap": float(energy_gaps(family, solution, best=best).mean()),
        "chain_breaks": solution.stats["chain_break_fraction"],
    }
    if not options.get("descent"):
        reads = solver.sample(family)
        least = family.energies(best.spins).double()
        tolerance = 1e-5 * (family.quadratic.trace().double() + family.offset.double() - least)
        row["optimal_reads"] = float((reads.energies.double() - least < tolerance).double().mean())
    return row


def torque_compensation(family):
    """D-Wave's default chain strength, 1.414 times the root mean square coupling times √(n − 1), in our unit."""
    couplings = Reads(family).columns[0].couplings
    n = len(couplings)
    typical = np.sqrt((couplings**2).sum() / (n * (n - 1)))
    return 1.414 * typical * np.sqrt(n - 1) / largest_eigenvalue(couplings)


def ways(family):
    """Options by name; all others have their defaults."""
    options = {f"chain strength {strength:g}": {"chain_strength": strength} for strength in STRENGTHS}
    options["chain strength as D-Wave's default"] = {"chain_strength": torque_compensation(family)}
    options |= {f"errors × {k}": {"h_error": 0.02 * k, "j_error": 0.01 * k} for k in ERRORS}
    options |= {"repair by majority": {"repair": "majority"}, "with descent": {"descent": True}}
    return options | {"5 % of the qubits broken": {"broken": 0.05}, "Zephyr Z15": {"topology": "zephyr", "size": 15}}


def rows():
    for n, kind, scale in itertools.product(SIZES, KINDS, SCALES):
        family = layer(n, kind, scale)
        best = Exact(node_limit=10**9).solve(family)
        assert bool(best.proven_optimal.all())
        for name, options in {"default": {}, **ways(family)}.items():
            yield {"spins": n, "rows": kind, "scale": scale, "way": name, **measure(family, best, **options)}


if __name__ == "__main__":
    torch.set_num_threads(2)
    publish(__file__, settings={"columns": COLUMNS, "reads": READS}, results=print_rows(rows()))
