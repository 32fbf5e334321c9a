"""The schedule of learning rates."""

from __future__ import annotations

import math


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
