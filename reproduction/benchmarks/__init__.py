"""The scripts behind every number in docs/, one per question; run one with `python benchmarks/…`."""
