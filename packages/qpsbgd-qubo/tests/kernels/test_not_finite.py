"""Numbers that no family may hold: kernels that meet them all the same end, keep spins ±1 and prove nothing."""

import numpy as np
import pytest

from qpsbgd_qubo.kernels import NEVER, kernels

VALUES = ("nan", "inf", "-inf", "largest", "one nan")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def bad(n, m, value, dtype):
    """Couplings (n, n), linear terms (m, n), fields and spins."""
    number = {"largest": np.finfo(dtype).max, "one nan": 1.0}.get(value) or float(value)
    couplings = np.full((n, n), number, dtype)
    np.fill_diagonal(couplings, 0)
    if value == "one nan":
        couplings[0, 1] = couplings[1, 0] = np.nan
    linear = np.full((m, n), number if np.isfinite(number) else 1, dtype)
    spins = np.ones((m, n), dtype)
    spins[:, ::3] = -1
    return couplings, linear, np.ascontiguousarray(linear + spins @ couplings, dtype), spins


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("n", "dtype"), [(5, np.float64), (16, np.float32), (37, np.float32)])
def test_searches_keep_spins(n, dtype, value):
    couplings, linear, fields, spins = bad(n, 3, value, dtype)
    threshold, flips, states = np.zeros(3, dtype), np.zeros(3, np.int64), np.arange(1, 4, dtype=np.uint64)
    kernels.search(couplings, fields.copy(), spins, threshold, flips, 5000, 50, 2, 0, NEVER, 2)
    assert (abs(spins) == 1).all()
    sites, heat = np.arange(n, dtype=np.int32), np.linspace(2, 0, 9).astype(dtype)
    kernels.anneal(couplings, fields.copy(), spins, sites, heat, states, flips, NEVER, 2)
    assert (abs(spins) == 1).all()
    found, diagonal = np.zeros_like(spins), np.ones(n, dtype)
    parts = (couplings, diagonal, linear, abs(couplings).sum(1), spins[None].copy(), fields[None].copy(), threshold)
    kernels.search_layer(*parts, found, 30, 2, 2, 2, 0, 2)
    assert (abs(found) == 1).all()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("n", [13])
def test_nothing_is_proven(n, value):
    couplings, linear, _, spins = bad(n, 2, value, np.float64)
    one, before = np.ones(n), spins.copy()
    assert not kernels.exhaust(couplings, linear[0], one, NEVER, 2)
    assert (abs(one) == 1).all()
    done, nodes, fixed = np.ones(2, bool), np.ones(2, np.int64), np.zeros((2, n))
    kernels.complete(couplings, linear, fixed, spins, done, NEVER, 2)
    assert not done.any()
    assert (spins == before).all()
    kernels.decode(couplings, linear, fixed, spins, 1.0, 1000, nodes, NEVER, 2)
    assert (nodes == -1).all()
    assert (abs(spins) == 1).all()
    kernels.fix_dominated(couplings, linear, fixed, NEVER, 2)
    assert np.isin(fixed, [-1, 0, 1]).all()
    if value != "one nan":
        assert (fixed == 0).all()
