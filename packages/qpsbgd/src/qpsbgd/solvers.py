"""Solvers of QUBO families, from `qpsbgd_qubo`."""

from qpsbgd_qubo.solvers import SOLVERS, Solver, best_on_interrupt, make_solver

__all__ = ["SOLVERS", "Solver", "best_on_interrupt", "make_solver"]
