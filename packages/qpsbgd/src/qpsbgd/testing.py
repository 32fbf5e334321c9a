"""Checks that every solver must pass; run them on your own solver with `check_solver(MySolver())`.

In pytest, one test per check:

    @pytest.mark.parametrize("check", SOLVER_CHECKS)
    def test_my_solver(check):
        check(MySolver())
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import Solver


def random_family(
    num_spins: int,
    num_columns: int,
    rows: int,
    *,
    scale: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> QuboFamily:
    """The binary map of Gaussian inputs and gradients."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, num_spins, generator=generator, dtype=torch.float64)
    grads = torch.randn(rows, num_columns, generator=generator, dtype=torch.float64)
    return binary_map(inputs, grads, scale=scale).to(dtype)


def lowest_energies(family: QuboFamily) -> torch.Tensor:
    """The least energy of every column, shape (m,), by trying all 2ⁿ spin vectors; for n up to about 16."""
    n = family.num_spins
    exact = family.to("cpu", torch.float64)
    lowest = torch.full((family.num_columns,), torch.inf, dtype=torch.float64)
    for codes in torch.split(torch.arange(2**n), 4096):
        vectors = 2.0 * ((codes[:, None] >> torch.arange(n)) & 1).double() - 1
        energies = torch.einsum("ki,ij,kj->k", vectors, exact.quadratic, vectors)[:, None] + vectors @ exact.linear
        lowest = torch.minimum(lowest, energies.amin(0) + exact.offset)
    return lowest


def check_answers_have_the_right_form(solver: Solver) -> None:
    """Spins are ±1 of shape (n, m) in the family's type; their energies are as stated; stats name the solver."""
    for dtype in (torch.float32, torch.float64):
        for n, m, rows in ((6, 3, 8), (1, 1, 1), (9, 1, 2), (2, 5, 4)):
            family = random_family(n, m, rows, dtype=dtype)
            solution = solver.solve(family)
            assert solution.spins.shape == (n, m)
            assert solution.spins.dtype == dtype
            assert solution.spins.device == family.linear.device
            assert (solution.spins.abs() == 1).all()
            assert solution.proven_optimal.shape == (m,)
            assert solution.proven_optimal.dtype == torch.bool
            torch.testing.assert_close(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)
            assert isinstance(solution.stats["solver"], str)


def check_claimed_optima_are_optimal(solver: Solver) -> None:
    """A column that is reported as proven optimal has the lowest energy of all spin vectors."""
    for seed, (n, rows, scale) in enumerate(((4, 9, 1.0), (10, 20, 0.5), (11, 4, 2.0), (12, 1, 1.0), (8, 30, 8.0))):
        family = random_family(n, 4, rows, scale=scale, seed=seed, dtype=torch.float64)
        solution = solver.solve(family)
        lowest = lowest_energies(family)
        assert (solution.energies >= lowest - 1e-9 * (1 + lowest.abs())).all()
        proven = solution.proven_optimal
        torch.testing.assert_close(solution.energies[proven], lowest[proven], rtol=1e-9, atol=1e-9)


def check_a_family_without_couplings_is_solved(solver: Solver) -> None:
    """With Q diagonal, the answer is sign(−s)."""
    linear = torch.tensor([[3.0, -1.0], [-2.0, 4.0], [1.0, 1.0]])
    solution = solver.solve(QuboFamily(torch.diag(torch.tensor([0.0, 1.0, 5.0])), linear, torch.zeros(2)))
    assert torch.equal(solution.spins, -linear.sign())


def check_a_family_of_zeros_is_answered(solver: Solver) -> None:
    """Where every spin vector is optimal, any may be returned."""
    solution = solver.solve(QuboFamily(torch.zeros(4, 4), torch.zeros(4, 2), torch.ones(2)))
    assert (solution.spins.abs() == 1).all()
    assert torch.equal(solution.energies, torch.ones(2))


def check_couplings_are_respected(solver: Solver) -> None:
    """Two spins that prefer to differ, and a field that decides which way."""
    quadratic = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    linear = torch.tensor([[1.0, -1.0], [0.5, -0.5]])
    solution = solver.solve(QuboFamily(quadratic, linear, torch.zeros(2)))
    assert torch.equal(solution.spins, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))


def check_the_family_is_left_as_it_was(solver: Solver) -> None:
    """Solving changes neither Q nor s nor c."""
    family = random_family(12, 4, 6)
    before = [t.clone() for t in (family.quadratic, family.linear, family.offset)]
    solver.solve(family)
    after = (family.quadratic, family.linear, family.offset)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def check_several_families_are_answered_in_order(solver: Solver) -> None:
    """`solve_all` gives one solution per family, in their order, with the energies of its spins."""
    families = [random_family(5, 3, 7, seed=1), random_family(8, 2, 4, seed=2), random_family(5, 3, 7, seed=3)]
    solutions = solver.solve_all(families)
    assert [s.spins.shape for s in solutions] == [(5, 3), (8, 2), (5, 3)]
    for family, solution in zip(families, solutions, strict=True):
        torch.testing.assert_close(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)
    assert solver.solve_all([]) == []


def check_the_state_can_be_restored(solver: Solver) -> None:
    """After `load_state_dict`, a solver answers as it did when `state_dict` was called."""
    family = random_family(14, 6, 5, scale=0.5)
    state = solver.state_dict()
    first = solver.solve(family).spins
    solver.load_state_dict(state)
    assert torch.equal(solver.solve(family).spins, first)


SOLVER_CHECKS: tuple[Callable[[Solver], None], ...] = tuple(
    function for name, function in list(globals().items()) if name.startswith("check_")
)
"""All checks, for one test each."""


def check_solver(solver: Solver) -> None:
    """Run all checks; the first that fails raises AssertionError."""
    for check in SOLVER_CHECKS:
        check(solver)
