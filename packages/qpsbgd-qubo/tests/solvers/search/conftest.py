"""The vectors that every twin of the search must answer as the reference does, in spins and in flips."""

from dataclasses import dataclass, field

import pytest
import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd.testing import random_family
from qpsbgd_qubo.kernels import NEVER, reference
from qpsbgd_qubo.solvers.search.landscape import Landscape, sign_start


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
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(-2, 3, (n, n), generator=generator).float()
    return QuboFamily(half + half.T, torch.randint(-4, 5, (n, m), generator=generator).float())


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
    "no couplings": Vector(QuboFamily(torch.eye(6), torch.arange(12.0).reshape(6, 2) - 5), {"patience": 4}),
    "rows of a layer": Vector(random_family(20, 3, 10, scale=0.3), {"patience": 20, "seed": 1}),
}


def plain_search(family, spins, *, max_flips, patience, tenure=2, seed=0):
    """Lower `spins` (n, m) in place by the plain reference; the flips of every column."""
    landscape = Landscape.of(family)
    fields, columns = landscape.fields(spins).T.contiguous().numpy(), spins.T.contiguous()
    flips = torch.zeros(spins.shape[1], dtype=torch.int64)
    limits = (max_flips, patience, tenure, seed, NEVER)
    couplings, threshold = landscape.couplings.numpy(), landscape.threshold.numpy()
    reference.search(couplings, fields, columns.numpy(), threshold, flips.numpy(), *limits)
    spins.copy_(columns.T)
    return flips


@pytest.fixture(params=VECTORS)
def vector(request):
    return VECTORS[request.param]
