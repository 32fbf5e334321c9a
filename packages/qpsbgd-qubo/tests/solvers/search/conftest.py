"""Vectors of the search, compiled and in Triton, whose spins and flips must be the same."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from qpsbgd_qubo import QuboFamily
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.testing import random_family


@dataclass(frozen=True, eq=False)
class Vector:
    family: QuboFamily
    limits: dict = field(default_factory=dict)
    upwards: bool = False

    @property
    def start(self):
        return -sign_start(self.family) if self.upwards else sign_start(self.family)

    def options(self):
        return {"max_flips": 5000, "patience": 0, "tenure": 2, "seed": 0} | self.limits


def whole_numbers(n, m, *, seed=0):
    """Without rounding, and full of ties."""
    generator = np.random.default_rng(seed)
    half = generator.integers(-2, 3, (n, n)).astype(np.float32)
    return QuboFamily(half + half.T, generator.integers(-4, 5, (n, m)).astype(np.float32))


VECTORS = {
    "descent": Vector(whole_numbers(14, 3)),
    "descent from the worst signs": Vector(whole_numbers(14, 2, seed=1), upwards=True),
    "descent with few flips": Vector(whole_numbers(14, 2, seed=2), {"max_flips": 3}, upwards=True),
    "no flips": Vector(whole_numbers(6, 2), {"max_flips": 0, "patience": 5}),
    "tabu": Vector(whole_numbers(14, 3, seed=3), {"patience": 12}),
    "tabu with all spins tabu at times": Vector(whole_numbers(5, 2), {"patience": 20, "tenure": 9, "seed": 3}),
    "tabu until the flips are used up": Vector(whole_numbers(20, 3, seed=4), {"max_flips": 20, "patience": 50}),
    "tabu with a large seed": Vector(whole_numbers(17, 2, seed=5), {"patience": 15, "seed": 2**40 + 7}),
    "one spin": Vector(whole_numbers(1, 2), {"patience": 5}),
    "no couplings": Vector(
        QuboFamily(np.eye(6, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(6, 2) - 5), {"patience": 4}
    ),
    "rows of a layer": Vector(random_family(20, 3, 10, scale=0.3), {"patience": 20, "seed": 1}),
}


@pytest.fixture(params=VECTORS)
def vector(request):
    return VECTORS[request.param]
