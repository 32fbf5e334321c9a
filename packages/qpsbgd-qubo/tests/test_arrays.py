"""Families and solutions of tensors: the same as of arrays, on the tensors' device."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from qpsbgd_qubo import QuboFamily, Solution, make_solver, solve
from qpsbgd_qubo.testing import random_family

TYPES = {np.float32: torch.float32, np.float64: torch.float64}


def of_tensors(family):
    return QuboFamily(*map(torch.from_numpy, (family.quadratic, family.linear, family.offset)))


@pytest.mark.parametrize(
    ("name", "options", "num_spins", "dtype"),
    [
        ("exact", {}, 6, np.float32),
        ("exact", {}, 24, np.float64),
        ("descent", {"restarts": 1}, 24, np.float32),
        ("annealing", {}, 24, np.float64),
        ("quantum-annealing", {}, 6, np.float32),
        ("auto", {"rounds": 1}, 24, np.float64),
    ],
)
def test_tensors_get_the_answers_of_arrays_as_tensors(name, options, num_spins, dtype):
    family, solver = random_family(num_spins, 3, 12, dtype=dtype), make_solver(name, **options)
    expected, found = solver.solve(family), solver.solve(of_tensors(family))
    assert found.spins.dtype == found.energies.dtype == TYPES[dtype] and found.proven_optimal.dtype == torch.bool
    for part in ("spins", "energies", "proven_optimal"):
        assert np.array_equal(getattr(found, part).numpy(), getattr(expected, part))
    assert found.stats == expected.stats


def test_a_list_may_hold_families_of_arrays_and_of_tensors():
    family = random_family(5, 2, 7)
    plain, other = make_solver("descent").solve_all([family, of_tensors(family)])
    assert isinstance(plain.spins, np.ndarray) and isinstance(other.spins, torch.Tensor)


def test_one_tensor_makes_a_family_of_tensors():
    family = QuboFamily([[0, 1], [1, 0]], torch.ones(2, 1))
    assert isinstance(family.quadratic, torch.Tensor) and family.quadratic.dtype == torch.float64
    assert repr(family) == "QuboFamily(n=2, m=1, float64, cpu)"
    assert family.energies([[-1], [1]]).tolist() == [-2.0]


def test_half_precision_is_widened_and_gradients_are_left_behind():
    family = QuboFamily(torch.eye(2).bfloat16(), torch.zeros(2, 1).half().requires_grad_())
    assert family.quadratic.dtype == torch.float32 and not family.linear.requires_grad
    matrix = torch.tensor([[-1.0, 2.0], [0.0, -3.0]])
    for form in (matrix.bfloat16(), matrix.int(), matrix.T, matrix.requires_grad_()):
        assert solve(form).value == -3.0


def test_a_solution_of_tensors_takes_arrays():
    family = of_tensors(random_family(4, 2, 5))
    solution = Solution.of(family, np.ones((4, 2)), proven_optimal=np.array([True, False]))
    assert solution.spins.dtype == torch.float32 and solution.proven_optimal.tolist() == [True, False]


def test_complex_tensors_and_devices_that_differ_are_refused():
    with pytest.raises(ValueError, match="real coefficients"):
        QuboFamily(torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="must be on one device"):
        QuboFamily(torch.zeros(2, 2), torch.zeros(2, 1, device="meta"))


def test_a_family_does_not_change_with_the_tensors_that_it_is_made_of():
    parts = [torch.from_numpy(part) for part in vars(random_family(6, 3, 12)).values()]
    family, spins = QuboFamily(*parts), torch.ones(6, 3, dtype=parts[1].dtype)
    before = family.energies(spins)
    for part in parts:
        part.zero_()
    assert before.all() and family.energies(spins).equal(before)


def test_energies_are_not_rounded_in_an_autocast_block():
    family = of_tensors(random_family(24, 3, 12, dtype=np.float32))
    expected = make_solver("auto", rounds=1).solve(family)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = make_solver("auto", rounds=1).solve(family)
        assert torch.allclose(family.energies(found.spins), expected.energies)
    assert found.spins.equal(expected.spins) and found.energies.equal(expected.energies)


def test_a_family_of_arrays_becomes_one_of_tensors_of_another_type():
    family = random_family(4, 2, 5).to(torch.float64)
    assert family.linear.dtype == torch.float64
    with pytest.raises(ValueError, match="kept in float32 or float64"):
        family.to(torch.float16)
