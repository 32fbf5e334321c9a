import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import NEVER, kernels
from qpsbgd_qubo.solvers.exact import exact
from qpsbgd_qubo.solvers.exact.exact import Exact
from qpsbgd_qubo.testing import random_family


def exhausted(couplings, fields, stop=NEVER):
    spins = np.zeros(len(fields))
    return spins, kernels.exhaust(couplings, fields, spins, stop, 2)


def random_couplings(k, seed=0):
    half = np.random.default_rng(seed).normal(size=(k, k))
    couplings = half + half.T
    np.fill_diagonal(couplings, 0)
    return couplings


@pytest.mark.parametrize("strength", [0.0, 1.0])
@pytest.mark.parametrize("k", [10, 11, 12, 16])
def test_all_values_are_tried(k, strength):
    for seed in range(3):
        couplings, fields = random_couplings(k, seed), strength * np.random.default_rng(seed + 9).normal(size=k)
        every = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        least = (((every @ couplings) * every).sum(1) / 2 + every @ fields).min()
        spins, done = exhausted(couplings, fields, NEVER)
        assert done
        assert spins @ couplings @ spins / 2 + fields @ spins == pytest.approx(least)


@pytest.mark.parametrize("opened", [0, 1, 7, 10, 13, 16])
def test_the_open_spins_of_every_column_are_completed(opened):
    n = 18
    generator = np.random.default_rng(opened)
    couplings, linear = random_couplings(n, 1), generator.normal(size=(3, n))
    fixed = generator.choice([-1.0, 1.0], size=(3, n))
    for row in fixed:
        row[generator.permutation(n)[:opened]] = 0
    spins = np.where(fixed != 0, fixed, 1.0)
    done = np.zeros(3, bool)
    kernels.complete(couplings, linear, fixed, spins, done, NEVER, 2)
    assert done.all()
    values = np.array(list(itertools.product([-1.0, 1.0], repeat=opened)))
    for column in range(3):
        every = np.tile(fixed[column], (2**opened, 1))
        every[:, fixed[column] == 0] = values
        least = (((every @ couplings) * every).sum(1) / 2 + every @ linear[column]).min()
        found = spins[column]
        assert (found == fixed[column])[fixed[column] != 0].all()
        assert found @ couplings @ found / 2 + linear[column] @ found == pytest.approx(least)


def test_it_ends_when_the_time_is_up():
    spins, done = exhausted(random_couplings(30), np.ones(30), np.ones(1, np.uint8))
    assert not done and (np.abs(spins) == 1).all()


@pytest.mark.parametrize("kind", ["heavy-tailed", "partition"])
def test_what_the_decoder_cannot_prune_is_tried_out(kind, monkeypatch):
    generator = np.random.default_rng(3)
    if kind == "partition":
        weights = generator.integers(1, 10**6, 24).astype(float)
        quadratic = np.outer(weights, weights)
    else:
        half = generator.standard_cauchy((24, 24))
        quadratic = half + half.T
    family = QuboFamily(quadratic, np.zeros((24, 1)))
    solution = Exact().solve(family)
    assert solution.proven_optimal.all()
    # The decoder alone, with time enough, finds nothing better.
    monkeypatch.setattr("qpsbgd_qubo.solvers.exact.exact.exhaustion_work", lambda count: 2**62)
    alone = Exact().solve(family)
    if alone.proven_optimal.all():
        assert_close(alone.energies, solution.energies)
    assert (solution.energies <= alone.energies + 1e-9 * abs(alone.energies)).all()


def test_nothing_is_tried_out_that_the_decoder_proves_sooner(monkeypatch):
    family = random_family(24, 6, 60, scale=0.3, dtype=np.float64)
    expected = Exact().solve(family).energies

    def tried(*_):
        raise AssertionError("tried out")

    monkeypatch.setattr(exact, "TOGETHER", 1)  # so that no column is proven at first
    monkeypatch.setattr(exact, "kernels", SimpleNamespace(**{**vars(kernels), "exhaust": tried}))
    found = Exact().solve(family)
    assert found.proven_optimal.all()
    assert_close(found.energies, expected)


def test_the_least_shift_makes_the_couplings_barely_positive_definite():
    matrix = random_couplings(30) + np.diag(np.arange(30.0))
    shift = exact.least_shift(matrix)
    values = np.linalg.eigvalsh(matrix - np.diag(np.diag(matrix)) + shift * np.eye(30))
    assert values[0] == pytest.approx(1e-6 * (values[-1] - values[0]), rel=1e-3)
    assert exact.least_shift(random_couplings(501), seconds=0.0) is None
    assert exact.least_shift(random_couplings(500), seconds=0.0) is not None
