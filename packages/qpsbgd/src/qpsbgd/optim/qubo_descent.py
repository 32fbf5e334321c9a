"""Training without latent weights: every step, the binary weights become better answers of QUBOs."""

from __future__ import annotations

from typing import Literal

from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.optim.real_part import Real
from qpsbgd.projections.weights import Weights
from qpsbgd_qubo.solvers.options import Number


class QuboDescent(QPSBGD):
    """Chooses the binary weights by QUBOs; there are no latent weights, and no learning rate.

        W_j ← lower ⟨Ḡ_j − c A W̄_j, w⟩ + (c/2) wᵀ A w   over w ∈ {−1, +1}ⁿ

    Weights keep their size, and only their signs mean anything.

    Args:
        params: A model, binary layers, parameters, or parameter groups.
        steps: Total number of training steps, over which the share of flips falls to zero by a cosine.
        flips: The share of the weights that flip in a step at the beginning; parameter groups have it as "lr".
        memory: β of the running means of gradients and weights.
        max_flips: Most flips per column, block and step.
        couplings: Whether the model has couplings; without, W ← sign(W̄ − Ḡ/c).
        direction: "mean" for the mean gradient, "polar" for its polar factor, each unit divided by its rms.
        unit_power: c of a unit is that of the layer times (rms of its mean gradient / that of the layer)^unit_power.
        real: As for `QPSBGD`.
    """

    def __init__(
        self,
        params: Layers,
        *,
        steps: int | None = None,
        flips: float = 0.02,
        memory: float = 0.98,
        max_flips: int = 24,
        couplings: bool = True,
        direction: Literal["mean", "polar"] = "mean",
        unit_power: float = 0.0,
        real: Real = None,
    ) -> None:
        Number(least=0, most=0.5).checked("flips", flips)
        projection = Weights(max_flips=max_flips, couplings=couplings, direction=direction, unit_power=unit_power)
        super().__init__(
            params,
            flips,
            projection,
            momentum=memory,
            clip=None,
            steps=steps,
            warmup=0.0,
            relative=False,
            real=real,
        )
