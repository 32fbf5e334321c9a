import numpy as np
from closeness import assert_close

from qpsbgd_qubo.family import Solution
from qpsbgd_qubo.solvers.search.landscape import better_of, thresholds


def test_a_gain_counts_if_it_is_more_than_couplings_and_linear_terms_may_round():
    found = thresholds(np.array(1.0), np.array([0.0, 4.0], np.float32))
    assert_close(found, 8 * np.finfo(np.float32).eps * np.array([1.0, 5.0]), rtol=1e-6, atol=0)


def test_the_better_of_two_solutions_has_the_lower_energy_of_every_column_and_the_flips_of_both():
    def solution(sign, energies, **stats):
        proven = np.array([sign > 0] * 3)
        return Solution(np.full((2, 3), sign, np.int8), np.array(energies), proven, {"solver": "any", **stats})

    best = better_of(solution(1, [0.0, 1.0, 2.0], flips=3), solution(-1, [1.0, 1.0, 1.0], flips=4))
    assert best.energies.tolist() == [0, 1, 1]
    assert best.spins.tolist() == [[1, 1, -1]] * 2
    assert best.proven_optimal.tolist() == [True, True, False]
    assert best.stats == {"solver": "any", "flips": 7}
    assert better_of(best, solution(1, [2.0] * 3)).stats["flips"] == 7
    assert "flips" not in better_of(solution(1, [0.0] * 3), solution(1, [0.0] * 3)).stats
