"""The parts of experiments: methods, runs over processes, comparisons, claims and their verdicts."""
