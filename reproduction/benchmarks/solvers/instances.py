"""Single QUBO and max-cut problems after the published generators; the same name and seed give the same problem.

Not the instances of the collections themselves: those come from the generators' own random numbers.

- `bqp`: Beasley (1998), OR-Library: density 10 %, integers from −100 to 100, to be maximised over bits; with density
  50, 80 or 100 %, p3000 to p7000 of Palubeckis (2004).
- `random_graph`, `planar_graph`, `toroidal_grid`: Rinaldi's rudy, from which the G-set was made; max-cut with weights 1
  or ±1. rudy's planar generator is not described; here a planar graph is a triangulation of random points, and as in
  the G-set two of them are laid over each other.
"""

from functools import partial

import numpy as np

from qpsbgd_qubo.sparse import SparseIsing


def bqp(n, seed=0, *, density=0.1):
    """The least −xᵀAx over bits; A symmetric, integers from −100 to 100 in this share of its places."""
    generator = np.random.default_rng([n, seed, 1])
    rows, cols = np.triu_indices(n)
    kept = generator.random(len(rows)) < density
    rows, cols = rows[kept], cols[kept]
    values = generator.integers(-100, 101, len(rows))
    return SparseIsing.from_qubo(n, rows, cols, -np.where(rows == cols, 1, 2) * values)


def max_cut(n, rows, cols, weights):
    """The largest cut of a graph: the energy is minus the weight of the edges between −1 and +1."""
    weights = np.asarray(weights, dtype=np.float64)
    return SparseIsing.from_edges(n, rows, cols, weights / 2, offset=-weights.sum() / 2)


def random_graph(n, degree, seed=0, *, signs=False):
    """A graph with n · degree / 2 edges, drawn without repetition."""
    generator = np.random.default_rng([n, seed, 2])
    wanted, keys = round(n * degree / 2), np.zeros(0, np.int64)
    while len(keys) < wanted:
        ends = np.sort(generator.integers(0, n, (2, 2 * wanted)), axis=0)
        keys = np.unique(np.concatenate([keys, (ends[0] * n + ends[1])[ends[0] != ends[1]]]))
    keys = np.sort(generator.permutation(keys)[:wanted])
    return max_cut(n, keys // n, keys % n, weights_of(len(keys), generator, signs))


def toroidal_grid(height, width, seed=0, *, signs=True):
    """A square grid closed in both directions, weights ±1."""
    generator = np.random.default_rng([height, width, seed, 3])
    spots = np.arange(height * width).reshape(height, width)
    ends = [np.concatenate([spots.ravel(), spots.ravel()])]
    ends.append(np.concatenate([np.roll(spots, -1, 0).ravel(), np.roll(spots, -1, 1).ravel()]))
    return max_cut(height * width, *ends, weights_of(len(ends[0]), generator, signs))


def planar_graph(n, seed=0, *, signs=False):
    """Delaunay triangulations of two sets of random points over each other, one edge in a hundred left out."""
    from scipy.spatial import Delaunay  # all others do without scipy

    generator = np.random.default_rng([n, seed, 4])
    keys = []
    for _ in range(2):
        corners = Delaunay(generator.random((n, 2))).simplices
        ends = np.sort(corners[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
        edges = np.unique(ends[:, 0].astype(np.int64) * n + ends[:, 1])
        keys.append(edges[generator.random(len(edges)) < 0.99])
    keys = np.unique(np.concatenate(keys))
    return max_cut(n, keys // n, keys % n, weights_of(len(keys), generator, signs))


def weights_of(count, generator, signs):
    return generator.choice([-1.0, 1.0], count) if signs else np.ones(count)


DENSE = {
    **{f"bqp {n}, 10 %": partial(bqp, n) for n in (50, 100, 250, 500, 1000)},
    "bqp 1000, 100 %": partial(bqp, 1000, density=1.0),
    "bqp 2500, 10 %": partial(bqp, 2500),
    "bqp 2500, 10 %, second": partial(bqp, 2500, 1),
    "p 3000, 50 %": partial(bqp, 3000, 1000, density=0.5),
    "p 3000, 100 %": partial(bqp, 3000, 1000, density=1.0),
}
GRAPHS = {
    "random 800, degree 48": partial(random_graph, 800, 47.94),
    "random ±1 800, degree 48": partial(random_graph, 800, 47.94, signs=True),
    "torus ±1 800": partial(toroidal_grid, 100, 8),
    "planar ±1 800": partial(planar_graph, 800, signs=True),
    "random 2000, degree 20": partial(random_graph, 2000, 19.99),
    "torus ±1 2000": partial(toroidal_grid, 100, 20),
    "planar 2000": partial(planar_graph, 2000),
    "random 5000, degree 5": partial(random_graph, 5000, 5),
    "torus ±1 5000": partial(toroidal_grid, 100, 50),
    "planar ±1 7000": partial(planar_graph, 7000, signs=True),
    "torus ±1 10000": partial(toroidal_grid, 100, 100),
    "random 10000, degree 2": partial(random_graph, 10000, 2),
}
"""Makers of the instances that are measured, by name."""
