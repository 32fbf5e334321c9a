"""How good and how fast are the solvers?"""
