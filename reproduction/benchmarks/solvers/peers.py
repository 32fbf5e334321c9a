"""Other people's solvers, one column at a time: a dimod model in, spins in the order of its variables out."""

import time
import warnings

import numpy as np
import openjij
import simulated_bifurcation
import torch
from dwave.samplers import SimulatedAnnealingSampler, SteepestDescentSampler, TabuSampler

from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver


def sampler_function(sampler, **parameters):
    """A sampler as a function of a model."""

    def solve(model):
        best = sampler.sample(model, **parameters).first.sample
        return np.array([best[v] for v in model.variables], dtype=np.float64)

    return solve


def coefficients(model):
    """Couplings (n, n), each once, and fields (n,) of a model."""
    fields, (rows, columns, values), _ = model.to_numpy_vectors(variable_order=list(model.variables))
    couplings = np.zeros((len(fields), len(fields)))
    couplings[rows, columns] = values
    return couplings, fields


def bifurcation(seed=0, **parameters):
    def solve(model):
        couplings, fields = (torch.tensor(part, dtype=torch.float32) for part in coefficients(model))
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spins, _ = simulated_bifurcation.minimize(couplings, fields, domain="spin", verbose=False, **parameters)
        return spins.numpy().astype(np.float64)

    return solve


def gurobi(time_limit):
    solver = make_solver("gurobi", time_limit=time_limit)

    def solve(model):
        couplings, fields = coefficients(model)
        return solver.solve(QuboFamily((couplings + couplings.T) / 2, fields[:, None])).spins[:, 0].numpy()

    return solve


QUICK = {
    "dwave SA, 10 sweeps": sampler_function(SimulatedAnnealingSampler(), num_sweeps=10, num_reads=1, seed=0),
    "dwave SA, 100 sweeps × 4": sampler_function(SimulatedAnnealingSampler(), num_sweeps=100, num_reads=4, seed=0),
    "dwave tabu, 20 ms": sampler_function(TabuSampler(), timeout=20, seed=0),
    "dwave steepest descent × 10": sampler_function(SteepestDescentSampler(), num_reads=10, seed=0),
    "OpenJij SA, 100 sweeps × 4": sampler_function(openjij.SASampler(), num_sweeps=100, num_reads=4, seed=0),
    "simulated-bifurcation, 32 agents": bifurcation(agents=32, max_steps=1000),
}


def loop(solve, family, columns):
    """Seconds for these columns, one after the other, and their spins (n, columns); models are made before."""
    models = [family.to_bqm(int(column)) for column in columns]
    start = time.perf_counter()
    spins = [solve(model) for model in models]
    return time.perf_counter() - start, torch.from_numpy(np.stack(spins, axis=1))


def part_of(family, columns):
    """Some columns of a family, in double precision."""
    return QuboFamily(family.quadratic, family.linear[:, columns], family.offset[columns]).to(torch.float64)
