"""Small random sparse problems and their least energies, by trying all spins."""

import itertools

import numpy as np

from qpsbgd_qubo.solvers.search.chains import SparseModel
from qpsbgd_qubo.sparse import SparseIsing


def random_sparse(n, couplings, *, seed=0, whole=False, fields=True):
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, n, (2, couplings))
    values = generator.integers(-3, 4, couplings) if whole else generator.normal(size=couplings)
    linear = generator.normal(size=n) if fields else np.zeros(n)
    return SparseIsing.from_edges(n, *ends, values.astype(float), linear=np.round(linear) if whole else linear)


def torus(height, width, seed=0):
    """A square grid closed in both directions with couplings ±1."""
    generator = np.random.default_rng(seed)
    spots = np.arange(height * width).reshape(height, width)
    ends = np.tile(spots.ravel(), 2), np.concatenate([np.roll(spots, -1, axis).ravel() for axis in (0, 1)])
    return SparseIsing.from_edges(spots.size, *ends, generator.choice([-1.0, 1.0], 2 * spots.size))


def least_energy(problem):
    """The least of all energies, by the definition."""
    spins = np.array(list(itertools.product([-1, 1], repeat=problem.num_spins)), np.int8)
    rows, cols, couplings = problem.edges()
    return ((spins[:, rows] * spins[:, cols]) @ couplings + spins @ problem.linear).min() + problem.offset


def model_of(problem):
    return SparseModel.of(problem.indptr, problem.indices, problem.couplings, problem.linear)
