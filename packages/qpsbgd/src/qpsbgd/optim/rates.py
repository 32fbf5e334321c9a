"""Learning rates that need no tuning: relative to a layer's initial range, by norms, depth and length of training."""

from __future__ import annotations

import math

from qpsbgd_qubo.solvers.options import AT_LEAST_ONE_OR_NONE

UNKNOWN_LENGTH = 4000
"""Steps that a run is taken to have where its length is not given."""
WARMUP = 0.1
"""Fraction of the steps over which the rate rises in networks with norms; transformers need it
(reproduction/results/rates.json). Others have none: their rate is low, and a rise only costs steps."""
FREE_DEPTH = 2.0
"""Layers per stretch between norms that do not lower the rate."""
MEMORY, LEAST_MEMORY = 1 / 150, 5
"""Steps of the run that the mean gradient covers at most, as a fraction, and how many it may always cover: β = 0.8 in
runs of up to 750 steps, and 0.9 from 1,500 on (reproduction/benchmarks/training/training.py --momenta)."""
KEPT_SIZE = 0.75
"""Outputs, in sizes of the inputs, from which a layer counts for the depth: torch's own start gives 0.5, He's 1.1
(reproduction/benchmarks/training/training.py letter-deep)."""


def default_rate(factor: float, *, layers: int, norms: int, chained: int = 0, steps: int | None) -> float:
    """The rate factor · steps^(−1/4) · min(1, (2 / depth)^1.5), in units of the initial range.

    `depth` is layers / (1 + norms) for the binary layers that keep the size of their inputs: in a stretch without a
    norm the changes of all layers add up, while a norm takes out the size of what comes before. Layers that shrink
    their inputs, as converted ones do that start at torch's own weights, leave room for their scales to grow. The depth
    is at least `chained`, the norms of single rows after each other without a shortcut (docs/training.md).
    """
    length = AT_LEAST_ONE_OR_NONE.checked("steps", steps) or UNKNOWN_LENGTH
    return factor * math.pow(length, -0.25) * depth_factor(layers=layers, norms=norms, chained=chained)


def depth_factor(*, layers: int, norms: int, chained: int = 0) -> float:
    """The part min(1, (2 / depth)^1.5) of the rate; that of learned scales has it, too."""
    depth = max(layers / (1 + norms), chained)
    return math.pow(max(1.0, depth / FREE_DEPTH), -1.5)


def default_momentum(longest: float, *, steps: int | None) -> float:
    """β of a run: at most `longest`, and lower where the mean, of 1 / (1 − β) steps, would be a large part of it."""
    length = AT_LEAST_ONE_OR_NONE.checked("steps", steps)
    return longest if length is None else min(longest, 1 - 1 / max(LEAST_MEMORY, MEMORY * length))


def schedule(step: int, steps: int | None, warmup: float) -> float:
    """The factor on the learning rate at a step, counted from 0: up from 0 over `warmup` · steps, then a cosine down.

    It is 0 after the last of `steps`, and always 1 if their number is unknown.
    """
    if steps is None:
        return 1.0
    if step >= steps:
        return 0.0
    rising = max(1, round(warmup * steps)) if warmup else 0
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
