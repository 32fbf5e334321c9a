"""Other people's solvers: Gurobi and any dimod sampler."""
