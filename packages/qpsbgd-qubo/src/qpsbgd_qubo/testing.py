"""Checks that every solver must pass; run them on your own solver with `check_solver(MySolver())`.

In pytest, one test per check:

    @pytest.mark.parametrize("check", SOLVER_CHECKS)
    def test_my_solver(check):
        check(MySolver())
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.solvers import Solver


def random_family(
    num_spins: int, num_columns: int, rows: int, *, scale: float = 1.0, seed: int = 0, dtype: Any = np.float32
) -> QuboFamily:
    """The binary map of Gaussian inputs and gradients."""
    generator = np.random.default_rng(seed)
    inputs, grads = (generator.standard_normal((rows, count)) for count in (num_spins, num_columns))
    family = binary_map(inputs, grads, scale=scale)
    return QuboFamily(*(part.astype(dtype) for part in (family.quadratic, family.linear, family.offset)))


def binary_map(inputs: Array, grads: Array, *, scale: float = 1.0) -> QuboFamily:
    """A layer's family from inputs x (B, n) and gradients v (B, m), as training makes it.

    Q = Σ zzᵀ,   s_j = −2 Σ λ_j v_j z,   z = x/‖x‖²,   λ_j = scale · mean ‖z‖₁ / rms(v_j)
    """
    used = inputs.any(1)
    inputs, grads = inputs[used], grads[used]
    directions = inputs / np.square(inputs).sum(1, keepdims=True)
    targets = scale * abs(directions).sum(1).mean() / np.sqrt(np.square(grads).mean(0)) * grads
    return QuboFamily(directions.T @ directions, -2 * directions.T @ targets, np.square(targets).sum(0))


def lowest_energies(family: QuboFamily) -> Array:
    """The least energy of every column, shape (m,), by trying all 2ⁿ spin vectors; for n up to about 16."""
    exact = family.numpy().double()
    lowest = np.full(family.num_columns, np.inf)
    for codes in np.array_split(np.arange(2**family.num_spins), max(1, 2**family.num_spins // 4096)):
        vectors = 2.0 * (codes[:, None] >> np.arange(family.num_spins) & 1) - 1
        energies = ((vectors @ exact.quadratic) * vectors).sum(1)[:, None] + vectors @ exact.linear
        lowest = np.minimum(lowest, energies.min(0) + exact.offset)
    return lowest


def check_answers_have_the_right_form(solver: Solver) -> None:
    """Spins are ±1 of shape (n, m) in the family's type; their energies are as stated; stats name the solver."""
    for dtype in (np.float32, np.float64):
        for n, m, rows in ((6, 3, 8), (1, 1, 1), (9, 1, 2), (2, 5, 4)):
            family = random_family(n, m, rows, dtype=dtype)
            solution = solver.solve(family)
            assert solution.spins.shape == (n, m)
            assert solution.spins.dtype == solution.energies.dtype == dtype
            assert (abs(solution.spins) == 1).all()
            assert solution.proven_optimal.shape == (m,)
            assert solution.proven_optimal.dtype == bool
            np.testing.assert_allclose(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)
            assert isinstance(solution.stats["solver"], str)


def check_claimed_optima_are_optimal(solver: Solver) -> None:
    """A column that is reported as proven optimal has the lowest energy of all spin vectors."""
    for seed, (n, rows, scale) in enumerate(((4, 9, 1.0), (10, 20, 0.5), (11, 4, 2.0), (12, 1, 1.0), (8, 30, 8.0))):
        family = random_family(n, 4, rows, scale=scale, seed=seed, dtype=np.float64)
        solution = solver.solve(family)
        lowest = lowest_energies(family)
        assert (solution.energies >= lowest - 1e-9 * (1 + abs(lowest))).all()
        proven = solution.proven_optimal
        np.testing.assert_allclose(solution.energies[proven], lowest[proven], rtol=1e-9, atol=1e-9)


def check_a_family_without_couplings_is_solved(solver: Solver) -> None:
    """With Q diagonal, the answer is sign(−s)."""
    linear = np.array([[3.0, -1.0], [-2.0, 4.0], [1.0, 1.0]])
    solution = solver.solve(QuboFamily(np.diag([0.0, 1.0, 5.0]), linear))
    assert np.array_equal(solution.spins, -np.sign(linear))


def check_a_family_of_zeros_is_answered(solver: Solver) -> None:
    """Where every spin vector is optimal, any may be returned."""
    solution = solver.solve(QuboFamily(np.zeros((4, 4)), np.zeros((4, 2)), np.ones(2)))
    assert (abs(solution.spins) == 1).all()
    assert np.array_equal(solution.energies, np.ones(2))


def check_couplings_are_respected(solver: Solver) -> None:
    """Two spins that prefer to differ, and a field that decides which way."""
    solution = solver.solve(QuboFamily([[1.0, 2.0], [2.0, 1.0]], [[1.0, -1.0], [0.5, -0.5]]))
    assert np.array_equal(solution.spins, [[-1.0, 1.0], [1.0, -1.0]])


def check_the_family_is_left_as_it_was(solver: Solver) -> None:
    """Solving changes neither Q nor s nor c."""
    family = random_family(12, 4, 6)
    before = [part.copy() for part in (family.quadratic, family.linear, family.offset)]
    solver.solve(family)
    after = (family.quadratic, family.linear, family.offset)
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def check_several_families_are_answered_in_order(solver: Solver) -> None:
    """`solve_all` gives one solution per family, in their order, with the energies of its spins."""
    families = [random_family(5, 3, 7, seed=1), random_family(8, 2, 4, seed=2), random_family(5, 3, 7, seed=3)]
    solutions = solver.solve_all(families)
    assert [s.spins.shape for s in solutions] == [(5, 3), (8, 2), (5, 3)]
    for family, solution in zip(families, solutions, strict=True):
        np.testing.assert_allclose(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)
    assert solver.solve_all([]) == []


def check_the_state_can_be_restored(solver: Solver) -> None:
    """After `load_state_dict`, a solver answers as it did when `state_dict` was called."""
    family = random_family(14, 6, 5, scale=0.5)
    state = solver.state_dict()
    first = solver.solve(family).spins
    solver.load_state_dict(state)
    assert np.array_equal(solver.solve(family).spins, first)


SOLVER_CHECKS: tuple[Callable[[Solver], None], ...] = tuple(
    function for name, function in list(globals().items()) if name.startswith("check_")
)
"""All checks, for one test each."""


def check_solver(solver: Solver) -> None:
    """Run all checks; the first that fails raises AssertionError."""
    for check in SOLVER_CHECKS:
        check(solver)
