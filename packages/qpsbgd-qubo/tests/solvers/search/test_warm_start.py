# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd")

from types import SimpleNamespace

import torch
from elsewhere import elsewhere

from qpsbgd.qubo import QuboFamily
from qpsbgd.testing import random_family
from qpsbgd_qubo.solvers.protocol import WarmState
from qpsbgd_qubo.solvers.search import tensor_descent
from qpsbgd_qubo.solvers.search.descent import Descent


def check_local_minimum(family, linear, solution):
    """The solution's spins, energies and state belong together, and no flip lowers the energy."""
    couplings = 2 * family.quadratic - torch.diag(2 * family.quadratic.diagonal())
    spins, fields = solution.spins, solution.state.coupling_fields
    torch.testing.assert_close(fields[0], spins.T @ couplings)
    torch.testing.assert_close(solution.energies, QuboFamily(family.quadratic, linear).energies(spins))
    assert (spins.T * (linear.T + fields[0])).max() < 1e-9


def test_a_warm_descent_goes_on_from_state_to_state_and_ends_in_local_minima():
    family, solver = random_family(30, 6, 40, dtype=torch.float64), Descent(warm=True)
    state = solver.init(family.quadratic)
    for step in range(4):
        linear = family.linear + 0.1 * step * family.linear.roll(1, 0)
        solution = solver.solve(state, linear)
        check_local_minimum(family, linear, solution)
        state = solution.state
    wider = QuboFamily(family.quadratic + torch.eye(30), family.linear)
    moved = solver.solve(solver.init(wider.quadratic, state), wider.linear)
    check_local_minimum(wider, wider.linear, moved)


def test_arrays_and_tensors_are_answered_alike_and_blocks_one_by_one():
    families, solver = [random_family(9, 4, 12, seed=seed, dtype=torch.float64) for seed in (0, 1)], Descent(warm=True)
    quadratic, linear = (torch.stack([getattr(each, name) for each in families]) for name in ("quadratic", "linear"))
    blocks = solver.solve(solver.init(quadratic), linear)
    arrays = solver.solve(solver.init(quadratic.numpy()), linear.numpy())
    assert blocks.spins.shape == linear.shape and (arrays.spins == blocks.spins.numpy()).all()
    for block, family in enumerate(families):
        alone = solver.solve(solver.init(family.quadratic), family.linear)
        assert torch.equal(alone.spins, blocks.spins[block])
        torch.testing.assert_close(alone.energies, blocks.energies[block])


def test_a_search_begins_with_the_deviations_of_the_last_answer_from_the_sign_vector():
    torch.manual_seed(0)
    matrix, solver = torch.eye(9), Descent(warm=True, max_flips=0)
    spins, (first, second) = torch.randn(9, 4).sign(), torch.randn(2, 9, 4)
    last = WarmState(matrix, spins=spins.T[None], signs=first.T[None] <= 0)
    found = solver.solve(solver.init(matrix, last), second).spins
    assert torch.equal(found * second.sign(), spins * first.sign())
    without = solver.init(matrix, WarmState(matrix, spins=spins.T[None]))
    assert torch.equal(solver.solve(without, second).spins, spins)


def test_on_another_device_a_search_begins_with_the_last_answer_where_signs_are_as_they_were():
    family, solver = random_family(30, 6, 40, dtype=torch.float64), Descent(warm=True)
    first = solver.solve(solver.init(elsewhere(family.quadratic)), elsewhere(family.linear))
    plain = solver.solve(solver.init(family.quadratic), family.linear)
    assert torch.equal(first.spins, plain.spins) and torch.equal(first.state.signs, family.linear.T[None] <= 0)
    torch.testing.assert_close(first.energies, plain.energies)
    assert first.state.coupling_fields is None
    turned = torch.arange(30)[:, None] % 3 == 0
    now = elsewhere(torch.where(turned, -family.linear, family.linear))
    found = Descent(max_flips=0, warm=True).solve(first.state, now)
    assert torch.equal(found.spins, torch.where(turned, -first.spins, first.spins))


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
