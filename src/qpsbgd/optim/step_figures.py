"""What can be said about a step, as plain numbers; computed only where a `Monitor` reports it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.blocks import Blocks
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers.search.landscape import sign_start

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


def projection(
    families: Sequence[QuboFamily], solutions: Sequence[Solution], *, blocks: Blocks, like: Tensor
) -> dict[str, float]:
    """The solutions of a layer's blocks beside the sign vectors: energies and spins that differ; see `Monitor`.

    Args:
        families: What was solved, per block.
        solutions: Its solutions.
        blocks: Of the layer.
        like: The layer's weight.
    """
    gains, differ = [], []
    for family, solution in zip(families, solutions, strict=True):
        spins, signs = solution.spins, sign_start(family)
        # E(g) − E(h) = (g − h)ᵀ (Q (g + h) + s): more exact than two large energies, and zero for equal spins
        gain = (spins - signs) * (family.quadratic @ (spins + signs) + family.linear)
        gains.append(gain.sum(0).mean())
        differ.append((spins != signs).float().T)
    return {
        "energy": torch.stack([solution.energies.mean() for solution in solutions]).mean().item(),
        "energy_minus_sign": torch.stack(gains).mean().item(),
        "spins_off_sign": blocks.joined(torch.stack(differ), like).mean().item(),  # without what blocks are padded with
    }


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
