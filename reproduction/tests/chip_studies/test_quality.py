import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.testing import random_family
from qpsbgd_paper.chip_studies.quality import _Flipped, energy_gaps
from qpsbgd_qubo.solvers.exact.exact import Exact


def test_the_gap_is_0_for_an_optimum_1_on_average_over_random_spins_and_2_at_most_for_fields_alone():
    """By hand: E = 3 g₁ + g₂ has energies −4, −2, 2, 4 and mean 0."""
    family = QuboFamily(torch.zeros(2, 2), torch.tensor([[3.0], [1.0]]), torch.zeros(1))
    best = Exact().solve(family)
    for spins, gap in (([-1, -1], 0.0), ([-1, 1], 0.5), ([1, -1], 1.5), ([1, 1], 2.0)):
        solution = Solution.of(family, torch.tensor(spins, dtype=torch.float32)[:, None])
        assert energy_gaps(family, solution, best=best).tolist() == [gap]


def test_flipped_answers_are_exact_but_for_the_flips():
    family = random_family(10, 200, 20)
    best = Exact().solve(family).spins
    for rate in (0.0, 0.2, 1.0):
        spins = _Flipped(rate, 0).solve(family).spins
        assert abs((spins != best).double().mean() - rate) < 0.04
