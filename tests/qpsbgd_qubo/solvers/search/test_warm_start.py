import torch

from qpsbgd.testing import random_family
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.warm_start import warm_descent


def test_fields_are_carried_on_and_every_search_ends_in_a_local_minimum():
    family = random_family(30, 6, 40, dtype=torch.float64)
    matrix, linear, last, cached = family.quadratic[None], family.linear.T[None], None, {}
    couplings = 2 * family.quadratic - torch.diag(2 * family.quadratic.diagonal())
    for step in range(4):
        now = linear + 0.1 * step * linear.roll(1, -1)
        last = warm_descent(Descent(warm=True), matrix, now, last=last, cached=cached)
        torch.testing.assert_close(last.coupling_fields, last.spins @ couplings)
        assert (last.spins * (now + last.coupling_fields)).max() < 1e-9  # no flip lowers the energy
