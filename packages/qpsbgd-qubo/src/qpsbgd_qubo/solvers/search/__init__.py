"""Heuristic solvers: descent with tabu moves, annealing and simulated quantum annealing."""
