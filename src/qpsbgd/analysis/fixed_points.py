"""Theorem 1 as a tool: the weights of a trained model that a further step would not change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qpsbgd.analysis.full_batch import Batches, Loss, full_batch
from qpsbgd.binary_map import Scale, binary_map
from qpsbgd.solvers import Solver, make_solver


@dataclass(frozen=True, eq=False)
class FixedPoints:
    """Where the condition of Theorem 1 holds.

    Attributes:
        holds: For every layer by name, True where −Π(∇E) equals the weight, in the shape of the layer's `weight`.
        proven: Whether the solver proved all its solutions optimal; if not, a False may be the solver's error.
    """

    holds: dict[str, Tensor]
    proven: bool

    @property
    def fraction(self) -> float:
        """The share of all weights for which the condition holds."""
        held = sum(int(mask.sum()) for mask in self.holds.values())
        return held / sum(mask.numel() for mask in self.holds.values())

    @property
    def is_fixed_point(self) -> bool:
        """Whether the condition holds for every weight: full-batch QP-SBGD would stay here forever."""
        return all(bool(mask.all()) for mask in self.holds.values())

    def __repr__(self) -> str:
        shares = ", ".join(f"{name or 'the model'}: {mask.float().mean():.3f}" for name, mask in self.holds.items())
        return f"FixedPoints(fraction={self.fraction:.3f}, {shares})"


@torch.no_grad()
def fixed_points(
    model: nn.Module, data: Batches, loss: Loss, *, solver: str | Solver = "auto", scale: Scale = 1.0
) -> FixedPoints:
    """For each binary weight, whether the full batch's projected gradient points away from it (Thm. 1).

        s is a fixed point  ⇔  −Π_{Zˢ}(∇_y E(s)) = s

    A column without gradient is not updated, so its weights count as held.

    Args:
        model: A model with binary layers; it is left as it was.
        data: (inputs, targets) or batches of them, together the full batch.
        loss: loss(model(inputs), targets), a mean over the batch.
        solver: The theorem is about exact answers, which "exact" gives for layers of up to about 40 inputs; a heuristic
            gives an estimate, and `proven` is then False.
        scale: As in training.
    """
    chosen = make_solver(solver)
    seen = full_batch(model, data, loss)
    families = [binary_map(s.record.inputs, s.record.output_grads, gain=s.layer.gain, scale=scale) for s in seen]
    holds = {}
    proven = True
    for part, family, solution in zip(seen, families, chosen.solve_all(families), strict=True):
        idle = (family.linear == 0).all(0)
        weights = part.layer.binary_weight.flatten(1).T
        holds[part.name] = ((solution.spins == -weights) | idle).T.reshape(part.layer.weight.shape)
        proven &= bool((solution.proven_optimal | idle).all())
    return FixedPoints(holds, proven)
