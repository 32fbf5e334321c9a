"""Training without latent weights: every step, the binary weights become better answers of QUBOs."""

from __future__ import annotations

from typing import Any

from qpsbgd.optim.parameters import Layers, param_groups
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.recommend import FEW_NORMS, Network
from qpsbgd.projections.weights import WEIGHT_DESCENT, Weights
from qpsbgd.solvers import Solver
from qpsbgd_qubo.options import NOT_NEGATIVE, POSITIVE

DEFAULT_FLIPS, FREE_LAYERS = 0.02, 3.0
"""Up to three layers without norms train best with this share; ten, whose changes add up, need a tenth of it
(reproduction/results/qubo_descent.json)."""


def default_flips(params: Layers) -> float:
    """The share of the weights that flip in a step at the beginning: 0.02, or less where there are few norms."""
    network = Network.of(param_groups(params))
    lowered = min(1.0, FREE_LAYERS / max(1.0, network.depth(network.trained_layers))) ** 2
    return DEFAULT_FLIPS * min(lowered, FEW_NORMS if network.few_norms else 1.0)


class QuboDescent(QPSBGD):
    """Chooses the binary weights by QUBOs; there are no latent weights, and no learning rate.

        w ← argmin over {−1, +1}ⁿ of ⟨F, w − w₀⟩ + (c/2) (w − w₀)ᵀ A (w − w₀)

    for every output unit, with its present weights w₀; see `qpsbgd.projections.weights.Weights`. The magnitudes of a
    layer's `weight` stay as they are, only signs change; `deploy.pack` saves a bit per weight.

    Args:
        params: As for `QPSBGD`.
        flips: The share of the weights that flip in a step at the beginning; None for 0.02, and less in
            networks of more than three layers with few norms or none.
        steps: Total number of training steps, over which the share of flips falls to zero by a cosine.
        solver: The name of a solver or a solver object. None descends from w₀, or is "exact" where there is a window.
        window: In each step solve for this many weights per output unit, those whose flips alone gain most, all others
            fixed: problems for exact solvers and annealers, whatever the width of the layer. None for all weights.
        turnover: The share of a new gradient in the mean gradient, for every flip of a weight: the mean covers 200
            steps at a share of 2 %, and more as the share falls.
        warmup: As for `QPSBGD`.
        real: As for `QPSBGD`.
        lr: `flips`, by the name that parameter groups, schedulers and frameworks have for it.
    """

    def __init__(
        self,
        params: Layers,
        flips: float | None = None,
        *,
        steps: int | None = None,
        solver: str | Solver | None = None,
        window: int | None = None,
        turnover: float = 0.25,
        warmup: float | None = None,
        real: Real = None,
        lr: float | None = None,
    ) -> None:
        if flips is not None and lr is not None:
            raise TypeError("flips and lr are the same; give one of them")
        POSITIVE.checked("turnover", turnover)
        groups = param_groups(params)
        share, name = (flips, "flips") if lr is None else (lr, "lr")
        if share is None:
            share = default_flips(groups)
        if NOT_NEGATIVE.checked(name, share) > 1:
            raise ValueError(f"{name} is a share of the weights and must be at most 1, got {share!r}")
        chosen = solver if solver is not None else "exact" if window is not None else WEIGHT_DESCENT
        projection = Weights(solver=chosen, window=window, turnover=turnover)
        super().__init__(
            groups,
            share,
            projection,
            momentum=0.0,
            clip=None,
            steps=steps,
            warmup=warmup,
            relative=False,
            real=real,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state, as if training had never stopped; one that does not fit changes nothing."""
        for group in state_dict["param_groups"]:
            if "projection" in group and group["projection"].get("name") != Weights.name:
                raise ValueError(self._foreign("it is one of QPSBGD"))
        super().load_state_dict(state_dict)
