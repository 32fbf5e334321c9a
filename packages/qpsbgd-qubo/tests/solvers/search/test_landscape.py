import numpy as np
from closeness import assert_close

from qpsbgd_qubo.solvers.search.landscape import thresholds


def test_a_gain_counts_if_it_is_more_than_couplings_and_linear_terms_may_round():
    found = thresholds(np.array(1.0), np.array([0.0, 4.0], np.float32))
    assert_close(found, 8 * np.finfo(np.float32).eps * np.array([1.0, 5.0]), rtol=1e-6, atol=0)
