"""Heuristic solvers: descent with tabu moves, annealing, simulated quantum annealing, bifurcation."""
