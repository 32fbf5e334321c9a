"""What the solvers on an annealer's chip share: the chip, tiles on it, packing, submissions, recordings, budget."""
