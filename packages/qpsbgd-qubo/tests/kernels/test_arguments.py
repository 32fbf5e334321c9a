"""What kernels are given is checked once, in the binding: sizes, numbers, alignment, and memory that is shared."""

import numpy as np
import pytest

from qpsbgd_qubo.kernels import NEVER, kernels

needs_kernels = pytest.mark.skipif(not hasattr(kernels, "__file__"), reason="kernels are not compiled")
pytestmark = needs_kernels


def column(n=6, m=2):
    """Couplings, fields, spins, threshold and flips."""
    couplings = np.ones((n, n)) - np.eye(n)
    spins = np.ones((m, n))
    return couplings, spins @ couplings, spins, np.zeros(m), np.zeros(m, np.int64)


def search(arrays, *, flips=100, patience=5, tenure=2, seed=0):
    kernels.search(*arrays, flips, patience, tenure, seed, NEVER, 1)


@pytest.mark.parametrize("tenure", [2**24 + 1, 2**63 - 1])
def test_huge_tenures_are_refused(tenure):
    rows = kernels.Rows(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2))
    spins, linear = np.ones(2, np.int8), np.zeros(2)
    for block in (1, 2**62):
        with pytest.raises(ValueError, match="tenure"):
            kernels.tabu_sparse(rows, linear, spins, block, 10, tenure, 1, NEVER)
    with pytest.raises(ValueError, match="block"):
        kernels.tabu_sparse(rows, linear, spins, 2**62, 10, 2, 1, NEVER)
    with pytest.raises(ValueError, match="tenure"):
        search(column(), tenure=tenure)
    with pytest.raises(ValueError, match="tenure"):
        search_layer(6, tenure=tenure)


def search_layer(n, m=2, tenure=2):
    spins = np.ones((m, n))
    kernels.search_layer(
        *(np.zeros((n, n)), np.ones(n), spins, np.ones(n), spins[None].copy(), spins[None].copy(), np.zeros(m)),
        *(np.zeros((m, n)), 5, tenure, 0, 0, 0, 1),
    )


def test_a_layer_needs_a_spin():
    search_layer(1)
    for call in (lambda: search_layer(0), lambda: search(column(0))):
        with pytest.raises(ValueError, match="at least one spin"):
            call()


def test_huge_patience_and_seeds_are_refused_or_wrap():
    with pytest.raises(ValueError, match="patience"):
        search(column(), patience=2**63 - 1)
    search(column(), seed=2**63 - 1)


def test_more_open_spins_than_can_be_tried_out_are_refused():
    n = 80
    couplings, fixed, spins, done = np.zeros((n, n)), np.zeros((1, n)), np.ones((1, n)), np.zeros(1, bool)
    with pytest.raises(ValueError, match="at most 60"):
        kernels.complete(couplings, np.ones((1, n)), fixed, spins, done, NEVER, 1)
    with pytest.raises(ValueError, match="at most 60"):
        kernels.exhaust(couplings[:61, :61].copy(), np.ones(61), np.zeros(61), np.ones(1, np.uint8), 1)
    fixed[:, 20:] = 1
    kernels.complete(couplings, np.ones((1, n)), fixed, spins, done, NEVER, 1)
    assert done.all()


def test_memory_that_is_written_must_not_be_shared():
    couplings, fields, spins, threshold, flips = column(2, 2)
    for arrays in ((couplings, spins, spins, threshold, flips), (fields, fields, spins, threshold, flips)):
        with pytest.raises(ValueError, match="share memory"):
            search(arrays)
    whole = np.ones(8)
    with pytest.raises(ValueError, match="share memory"):
        search((couplings, whole[:4].reshape(2, 2), whole[2:6].reshape(2, 2), threshold, flips))
    search((couplings, whole[:4].reshape(2, 2), whole[4:].reshape(2, 2), threshold, flips))
    with pytest.raises(ValueError, match="share memory"):
        kernels.fix_dominated(couplings, couplings, couplings, NEVER, 1)


def test_arrays_must_be_aligned():
    couplings, _, spins, threshold, flips = column(2, 2)
    crooked = np.ones(33, np.uint8)[1:].view(np.float64).reshape(2, 2)
    with pytest.raises(ValueError, match="aligned"):
        search((couplings, crooked, spins, threshold, flips))
    with pytest.raises(ValueError, match="aligned"):
        kernels.Rows(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(17, np.uint8)[1:].view(np.float64))


@pytest.mark.parametrize("threshold", [-1e-9, -np.inf, np.nan])
def test_a_descent_that_would_not_end_is_refused(threshold):
    rows = kernels.Rows(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2))
    spins, thresholds = np.ones(2, np.int8), np.array([0.0, threshold])
    with pytest.raises(ValueError, match="thresholds must be at least 0"):
        kernels.harvest(rows, np.zeros(2), thresholds, np.ones((1, 2), np.int8), spins, NEVER)


@pytest.mark.parametrize("spin", [0, 2, -128])
def test_whole_spins_must_be_plus_or_minus_one(spin):
    rows = kernels.Rows(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2))
    groups = kernels.Groups(rows, np.zeros(2), np.array([0, 2]), np.arange(2, dtype=np.int32), 1)
    spins, linear, sites = np.array([1, spin], np.int8), np.zeros(2), np.arange(2, dtype=np.int32)
    calls = (
        lambda: kernels.anneal_sparse(rows, linear, spins, sites, np.ones(3), 1, NEVER),
        lambda: kernels.harvest(rows, linear, linear.copy(), np.ones((1, 2), np.int8), spins, NEVER),
        lambda: kernels.harvest(rows, linear, linear.copy(), spins[None].copy(), np.ones(2, np.int8), NEVER),
        lambda: kernels.tabu_sparse(rows, linear, spins, 1, 10, 2, 1, NEVER),
        lambda: kernels.anneal_groups(groups, spins, sites, np.ones(3), 1, True, 1, NEVER),
        lambda: kernels.tabu_groups(groups, spins, 10, 2, 1, NEVER),
    )
    for call in calls:
        with pytest.raises(ValueError, match="spins must be -1 or 1"):
            call()
