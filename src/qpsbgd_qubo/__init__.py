"""Any QUBO or Ising problem, from a file or in Python: `solve(problem, time_limit=5)`. It needs no torch."""

from qpsbgd_qubo.assignments import Assignment, solve
from qpsbgd_qubo.dense import DenseIsing, TooLargeError
from qpsbgd_qubo.problem_files import FORMATS, read_problem, save_assignment
from qpsbgd_qubo.problems import Problem, bqm_problem, ising_problem, qubo_problem
from qpsbgd_qubo.sparse import SparseIsing

__all__ = [
    "FORMATS",
    "Assignment",
    "DenseIsing",
    "Problem",
    "SparseIsing",
    "TooLargeError",
    "bqm_problem",
    "ising_problem",
    "qubo_problem",
    "read_problem",
    "save_assignment",
    "solve",
]
