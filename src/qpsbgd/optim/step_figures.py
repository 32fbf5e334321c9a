"""What can be said about a step, as plain numbers; computed only where a `Monitor` reports it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer

Observer = Callable[[BinaryLayer, dict[str, float]], None]
"""Takes a layer and the figures of its projection."""


def movement(layer: BinaryLayer, before: Tensor) -> dict[str, float]:
    """How a step moved a layer: flip rate, step size and, where it can be said, agreement; see `Monitor`.

    Args:
        layer: After the step, with the gradient that it was made from.
        before: The latent weights before the step.
    """
    after, grad = layer.weight.detach(), layer.weight.grad
    step = (after - before).to(torch.promote_types(after.dtype, torch.float32))
    flips = torch.count_nonzero((after >= 0) != (before >= 0))  # sign(0) = +1
    figures = {
        "flip_rate": flips.item() / step.numel(),
        "step_size": torch.linalg.vector_norm(step).item() / math.sqrt(step.numel()) / layer.initial_bound,
    }
    if grad is not None:
        signs = step.sign() * grad.sign()
        if compared := torch.count_nonzero(signs).item():
            figures["agreement"] = torch.count_nonzero(signs < 0).item() / compared
    return figures


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
