"""QUBOs and Ising problems, one or many: `solve(problem, time_limit=5)` takes any of them, from a file or in Python.

`solve_many` takes many at once. It needs numpy alone. Dimod is loaded where `FamilySampler` or `PackedComposite` is
used, torch where a solver runs on a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qpsbgd_qubo.assignments import Assignment, solve, solve_many
    from qpsbgd_qubo.dimod_sampler import FamilySampler, PackedComposite
    from qpsbgd_qubo.family import QuboFamily, Solution
    from qpsbgd_qubo.problem_files import FORMATS, read_problem, save_assignment
    from qpsbgd_qubo.problems import Problem, bqm_problem, ising_problem, qubo_problem
    from qpsbgd_qubo.solvers import Solver, make_solver
    from qpsbgd_qubo.sparse import SparseIsing, TooLargeError

__all__ = [
    "FORMATS",
    "Assignment",
    "FamilySampler",
    "PackedComposite",
    "Problem",
    "QuboFamily",
    "Solution",
    "Solver",
    "SparseIsing",
    "TooLargeError",
    "bqm_problem",
    "ising_problem",
    "make_solver",
    "qubo_problem",
    "read_problem",
    "save_assignment",
    "solve",
    "solve_many",
]


_HOMES = {
    "FamilySampler": "dimod_sampler",
    "PackedComposite": "dimod_sampler",
    "QuboFamily": "family",
    "Solution": "family",
    "FORMATS": "problem_files",
    "read_problem": "problem_files",
    "save_assignment": "problem_files",
    "Solver": "solvers",
    "make_solver": "solvers",
    "SparseIsing": "sparse",
    "TooLargeError": "sparse",
    "Problem": "problems",
    "bqm_problem": "problems",
    "ising_problem": "problems",
    "qubo_problem": "problems",
}


def __getattr__(name: str) -> Any:
    # Not at the top: a command's help needs no numpy, a QUBO no dimod.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'assignments')}"), name)
