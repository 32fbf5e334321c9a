"""Solvers of QUBO families: the protocol, the table of names, and `make_solver`.

A new solver is one file with a subclass of `Solver` and its name in `registry`; `qpsbgd.testing` checks it. Other
packages add theirs by entry points of the group `qpsbgd.solvers`.
"""

from qpsbgd_qubo.solvers.deadline import best_on_interrupt
from qpsbgd_qubo.solvers.protocol import Solver
from qpsbgd_qubo.solvers.registry import SOLVERS, make_solver

__all__ = ["SOLVERS", "Solver", "best_on_interrupt", "make_solver"]
