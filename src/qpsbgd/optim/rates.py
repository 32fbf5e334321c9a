"""Learning rates that need no tuning: relative to a layer's initial range, by depth and length of training."""

from __future__ import annotations

import math

UNKNOWN_LENGTH = 4000
"""Steps that a run is taken to have where its length is not given."""


def default_rate(factor: float, *, layers: int, steps: int | None) -> float:
    """The rate factor / (layers^1.5 · √steps), in units of the initial range.

    Steps that point anywhere then carry a latent weight over the same share of its range in runs of any length. The
    deeper the net, the smaller that share, because the changes of all layers add up. See docs/decisions.md.
    """
    return factor / (math.pow(layers, 1.5) * math.sqrt(steps or UNKNOWN_LENGTH))


def cosine(step: int, steps: int) -> float:
    """The share of the learning rate at a step, counted from 0: from 1 down to 0 after the last of `steps`."""
    return 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))
