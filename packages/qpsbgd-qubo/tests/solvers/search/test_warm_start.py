from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("qpsbgd", reason="needs qpsbgd")

import torch
from elsewhere import elsewhere

from qpsbgd.qubo import QuboFamily
from qpsbgd.testing import random_family
from qpsbgd_qubo.solvers.search import tensor_descent
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


def test_on_another_device_a_search_begins_with_the_last_answer_where_signs_are_as_they_were():
    family = random_family(30, 6, 40, dtype=torch.float64)
    matrix, linear = family.quadratic[None], family.linear.T[None]
    first = warm_descent(Descent(), elsewhere(matrix), elsewhere(linear), last=None, cached={})
    plain = warm_descent(Descent(), matrix, linear, last=None, cached={})
    assert torch.equal(first.spins, plain.spins) and torch.equal(first.signs, linear <= 0)
    assert first.coupling_fields is None
    now = elsewhere(linear - 2 * linear * (torch.arange(30) % 3 == 0))
    found = warm_descent(Descent(max_flips=0), elsewhere(matrix), now, last=first, cached={})
    assert torch.equal(found.spins, torch.where(torch.arange(30) % 3 == 0, -first.spins, first.spins))


def test_a_family_on_another_device_is_searched_like_any_other():
    family = random_family(30, 6, 40)
    for options in ({}, {"tabu": 20, "tenure": 4}, {"max_flips": 3}, {"restarts": 1}):
        there = QuboFamily.trusted(*map(elsewhere, (family.quadratic, family.linear, family.offset)))
        found, expected = (Descent(**options).solve(one) for one in (there, family))
        assert torch.equal(found.spins, expected.spins) and found.stats == expected.stats
        torch.testing.assert_close(found.energies, expected.energies)


def test_kernels_of_a_gpu_are_given_the_limits_and_answer_for_the_family(monkeypatch):
    family, given = random_family(5, 2, 8), {}

    def search(quadratic, linear, spins, **limits):
        given.update(limits)
        return -spins, QuboFamily(quadratic[0], linear[0].T).energies(-spins[0].T)[None], torch.zeros(1, 2)

    monkeypatch.setattr(tensor_descent, "triton_kernels", lambda like, num_spins: SimpleNamespace(search=search))
    found = Descent(tabu=7, tenure=3, seed=5)._solve_on_gpu(family)
    assert given == {"max_flips": 100 * (5 + 7) + 1000, "patience": 7, "tenure": 3, "seed": 5}
    assert torch.equal(found.spins, torch.where(family.linear <= 0, -1.0, 1.0)) and not found.proven_optimal.any()
    torch.testing.assert_close(found.energies, family.energies(found.spins))
    assert found.stats == {"solver": "descent"}
