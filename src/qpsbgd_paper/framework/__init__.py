"""What experiments are made of: methods, runs over processes, comparisons, claims and their verdicts."""
