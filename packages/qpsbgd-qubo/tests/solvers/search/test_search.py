import numpy as np

from qpsbgd_qubo import QuboFamily
from qpsbgd_qubo.solvers.search.single_flips import local_search


def tabu_search(coupling, linear, spins, **limits):
    """Spins and flips from `spins` for E = 2 · coupling · g₁g₂ + linear · g."""
    family = QuboFamily([[0.0, coupling], [coupling, 0.0]], np.array([linear]).T)
    solution = local_search(family, np.array([spins], float).T, **limits)
    return solution.spins[:, 0].tolist(), solution.stats["flips"]


def test_descent_is_as_worked_out_by_hand():
    # Gains at (−1, −1) are 1 and 1.5, so the second spin flips; then both are negative.
    assert tabu_search(1.0, [1.0, 0.5], [-1, -1], max_flips=9, patience=0) == ([-1.0, 1.0], 1)


def test_tabu_moves_go_back_to_the_lowest_spins_as_worked_out_by_hand():
    # From there the second spin (−1.5) and then the first (+1) flip, the third move finds both tabu.
    assert tabu_search(1.0, [1.0, 0.5], [-1, -1], max_flips=9, patience=3) == ([-1.0, 1.0], 3)


def test_tabu_moves_climb_out_of_a_local_minimum_as_worked_out_by_hand():
    # (+1, +1) has gains −1.5, −1.5. The first of equals flips; the second then gains 2.5, to the optimum (−1, −1).
    assert tabu_search(-1.0, [0.5, 0.5], [1, 1], max_flips=2, patience=9) == ([-1.0, -1.0], 2)
