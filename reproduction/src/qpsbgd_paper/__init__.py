"""The paper that the library comes from: all of its experiments, analyses of the annealer, and the report on them."""
