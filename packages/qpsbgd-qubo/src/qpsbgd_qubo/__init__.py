"""QUBOs and Ising problems, one or many: `solve(problem, time_limit=5)` takes any of them, from a file or in Python.

It needs numpy alone. Dimod is loaded where `FamilySampler` is used, torch where a solver runs on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qpsbgd_qubo.assignments import Assignment, solve
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.problem_files import FORMATS, read_problem, save_assignment
from qpsbgd_qubo.problems import Problem, bqm_problem, ising_problem, qubo_problem
from qpsbgd_qubo.solvers import Solver, make_solver
from qpsbgd_qubo.sparse import SparseIsing, TooLargeError

if TYPE_CHECKING:
    from qpsbgd_qubo.dimod_sampler import FamilySampler

__all__ = [
    "FORMATS",
    "Assignment",
    "FamilySampler",
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
]


def __getattr__(name: str) -> Any:
    if name == "FamilySampler":
        from qpsbgd_qubo.dimod_sampler import FamilySampler

        return FamilySampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
