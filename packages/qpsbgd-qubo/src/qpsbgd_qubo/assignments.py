"""`solve` and `solve_many`: any QUBO or Ising problem, or many, in one call, whatever form they have."""

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array, thread_count
from qpsbgd_qubo.problem_files import read_problem
from qpsbgd_qubo.problems import Problem, bqm_problem, check_variables, named_entries, qubo_problem
from qpsbgd_qubo.solvers import Solver, best_on_interrupt, make_solver
from qpsbgd_qubo.solvers.deadline import ended_by_exceptions
from qpsbgd_qubo.solvers.protocol import ModelSolver
from qpsbgd_qubo.sparse import SparseIsing


@dataclass(frozen=True, eq=False)
class Assignment:
    """The best values found for a problem's variables.

    Attributes:
        problem: The problem in its own terms.
        spins: −1 or +1, shape (n, m), int8; m is 1 except for families of several columns.
        proven_optimal: Whether nothing better exists, shape (m,), bool.
        stats: What the solver reports about its work; `stats["solver"]` is the name of the one that was used.
    """

    problem: Problem
    spins: Array
    proven_optimal: Array
    stats: dict[str, Any]

    @functools.cached_property
    def energies(self) -> Array:
        """The problem's own value of every column, shape (m,)."""
        return self.problem.energies(self.spins)

    @property
    def value(self) -> float:
        """The best of them: the lowest energy found, or the highest value or cut where these are wanted."""
        return float(self.energies[self._best])

    @property
    def values(self) -> dict[Hashable, int]:
        """Label → value of every variable, 0 and 1 or −1 and +1; of several columns, those of the best."""
        values = self.problem.values(self.spins)[:, self._best]
        return dict(zip(self.problem.labels, values.tolist(), strict=True))

    @property
    def _best(self) -> int:
        return int((self.problem.sense * self.energies).argmin())

    def summary(self) -> dict[str, str]:
        """This answer in the problem's own terms: name → text."""
        problem, energies = self.problem, self.energies
        digits = 12 if problem.model.linear.dtype == np.float64 else 7
        m, proven = len(energies), int(self.proven_optimal.sum())
        mean = f", mean {_text(energies.mean(), digits)}" if m > 1 else ""
        energy = {} if problem.quantity == "energy" else {"energy": _text(problem.sense * self.value, digits)}
        solver = ", ".join(f"{key} {value}" for key, value in self.stats.items())
        return {
            "problem": f"n = {len(problem.labels)} variables ({problem.vartype}), couplings "
            f"{problem.model.num_couplings}, m = {m}, {problem.quantity} "
            f"{'maximised' if problem.maximize else 'minimised'}",
            f"best {problem.quantity}": _text(self.value, digits) + mean,
            **energy,
            "proven optimal": f"{proven} of {m}" if m > 1 else ("yes" if proven else "no"),
            "solver": solver.removeprefix("solver "),
        }

    def __repr__(self) -> str:
        proven = "proven optimal" if self.proven_optimal.all() else "not proven optimal"
        return f"Assignment({self.problem.quantity} {self.value:.12g} of {self.problem!r}, {proven}, {self.stats})"


def solve(
    problem: Any,
    *,
    solver: str | Solver = "auto",
    maximize: bool | None = None,
    until_interrupted: bool = False,
    **options: Any,
) -> Assignment:
    """The best values found for the variables of a QUBO or an Ising problem.

        solve("problem.qubo", time_limit=5).values

    Args:
        problem: A file's path; a numpy or scipy matrix A, for xᵀAx over x ∈ {0, 1}ⁿ; a dict (i, j) → value, the same
            with labels; a dimod model; a `Problem`, `SparseIsing` or `QuboFamily`.
        solver: A solver's name or a `Solver`.
        maximize: Whether to maximise; None for the problem's own sense, which is to minimise except in some files.
        until_interrupted: Whether Ctrl-C ends the search with the best answer so far, `stats["interrupted"]` true;
            otherwise it raises KeyboardInterrupt.
        **options: The solver's options: `time_limit`, `rounds` and `seed` of "auto".

    Raises:
        TypeError: The problem has another form.
        ValueError: It is not valid.

    Examples:
        >>> from qpsbgd_qubo import solve
        >>> answer = solve({("a", "b"): 2, ("a", "a"): -1, ("b", "b"): -3})
        >>> answer.value, answer.values
        (-3.0, {'a': 0, 'b': 1})
    """
    made, stated = make_solver(solver, **options), as_problem(problem, maximize=maximize)
    return _answers(lambda: [assignment(stated, made)], until_interrupted=until_interrupted)[0]


def solve_many(
    problems: Iterable[Any],
    *,
    solver: str | Solver = "auto",
    maximize: bool | None = None,
    until_interrupted: bool = False,
    **options: Any,
) -> list[Assignment]:
    """What `solve` returns for each of many problems, which need have nothing in common, in their order.

        solve_many([bqm, {("a", "b"): 1}, matrix, "problem.qubo"], solver="dwave")

    Solvers on an annealer get all of them in as few submissions as possible, within one budget: every problem on its
    own clique. Other solvers work on several at a time, each with the solver's options, a `time_limit` included.

    Args:
        problems: Each as `solve` takes it.
        solver: A solver's name or a `Solver`.
        maximize: As in `solve`, for all problems.
        until_interrupted: Whether Ctrl-C ends all searches with the best answers so far; otherwise it raises
            KeyboardInterrupt.
        **options: The solver's options.

    Raises:
        TypeError: A problem has another form.
        ValueError: A problem is not valid.

    Examples:
        >>> from qpsbgd_qubo import solve_many
        >>> [answer.value for answer in solve_many([{("a", "a"): -1}, {("x", "y"): 2, ("x", "x"): -3}])]
        [-1.0, -3.0]
    """
    chosen = make_solver(solver, **options)
    models = [as_problem(problem, maximize=maximize) for problem in problems]
    return _answers(lambda: _assignments(models, chosen), until_interrupted=until_interrupted)


def _answers(find: Callable[[], list[Assignment]], *, until_interrupted: bool) -> list[Assignment]:
    if not until_interrupted:
        return find()
    with best_on_interrupt() as interruption:
        answers = find()
    for answer in answers:
        answer.stats["interrupted"] = interruption.came
    return answers


def _assignments(problems: Sequence[Problem], solver: Solver) -> list[Assignment]:
    if solver.together:
        solutions = solver.solve_all([problem.family for problem in problems])
        return [_assignment_of(*pair) for pair in zip(problems, solutions, strict=True)]
    with ThreadPoolExecutor(thread_count()) as pool, ended_by_exceptions():
        context = copy_context()  # so that Ctrl-C reaches the searches on other threads, too
        return list(pool.map(lambda problem: context.copy().run(assignment, problem, solver), problems))


def assignment(problem: Problem, solver: Solver) -> Assignment:
    """The solver's answer; problems are made dense for solvers that need that."""
    solver = solver.for_problems()
    if isinstance(solver, ModelSolver):
        return _assignment(problem, *solver.answer(problem.model))
    return _assignment_of(problem, solver.solve(problem.family))


def _assignment_of(problem: Problem, solution: Solution) -> Assignment:
    return _assignment(problem, solution.spins.astype(np.int8), solution.proven_optimal, solution.stats)


def _assignment(problem: Problem, spins: Array, proven: Array, stats: dict[str, Any]) -> Assignment:
    return Assignment(problem, spins, proven & problem.is_exact if proven.any() else proven, stats)


def as_problem(value: Any, *, maximize: bool | None = None) -> Problem:
    """A problem from any form that `solve` takes, with the problem's own sense where `maximize` is None."""
    if maximize is not None:
        return as_problem(value).with_sense(maximize=maximize)
    if isinstance(value, Problem):
        return value
    if isinstance(value, str | os.PathLike):
        return read_problem(os.fspath(value))
    if isinstance(value, SparseIsing | QuboFamily):
        model = value if isinstance(value, SparseIsing) else value.numpy()
        return Problem(model, "SPIN", tuple(range(model.num_spins)))
    if hasattr(value, "tocoo"):  # scipy's matrices, some of which are mappings, too
        entries = value.tocoo()
        if len(entries.shape) != 2 or entries.shape[0] != entries.shape[1]:
            raise ValueError(f"a matrix must have shape (n, n), got {entries.shape}")
        n = check_variables(entries.shape[0])
        return Problem(SparseIsing.from_qubo(n, entries.row, entries.col, entries.data), "BINARY", tuple(range(n)))
    if isinstance(value, Mapping):
        labels, parts = named_entries(value, "keys must be pairs (i, j), (i, i) for a linear term")
        return Problem(SparseIsing.from_qubo(check_variables(len(labels)), *parts), "BINARY", labels)
    if hasattr(value, "to_numpy_vectors"):  # dimod's models
        return bqm_problem(value)
    if hasattr(value, "__array__"):
        return qubo_problem(value)
    raise TypeError(
        "a problem must be a file's path, a matrix of numpy or scipy, a dict (i, j) -> value, a BinaryQuadraticModel "
        "of dimod (dimod.cqm_to_bqm makes one of a constrained model), a Problem, a SparseIsing or a QuboFamily, got "
        f"{type(value).__name__}"
    )


def _text(value: float, digits: int) -> str:
    return f"{float(value) + 0.0:.{digits}g}"  # + 0.0 makes 0 of −0
