"""What QPSBGD uses where nothing is given, and why: a function of a network's parameters and the number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch.nn.parameter import is_lazy

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.convolutions import BinaryConvNd
from qpsbgd.optim.parameters import NO_LAYER, Layers, ParameterSplit, param_groups
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Polar, Projection, Ridge
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE

RATE = 0.25
"""The rate of a run of one step, chosen on networks with and without norms (reproduction/results/rates.json)."""
UNKNOWN_LENGTH = 4000
"""Steps that a run is taken to have where its length is not given."""
FREE_DEPTH = 2.0
"""Layers per stretch between norms that do not lower the rate."""
NORMED, FEW_NORMS = 0.75, 0.4
"""Networks with fewer norms per layer, as transformers, mixers and ConvNeXt, which have about a half, have their rate
times 0.4: outputs grow with weights that no norm follows, and a ViT loses six points (docs/training.md)."""
DEEP = 12
"""Binary layers from which on networks with norms get the polar factor: with 6 the ridge is better, with 12 the two are
level, and with 16 and more the polar factor is (docs/training.md)."""
WARMUP = 0.1
"""Fraction of the steps over which the rate rises in networks with norms; transformers need it
(reproduction/results/rates.json). Others have none: their rate is low, and a rise only costs steps."""
MEMORY, LEAST_MEMORY = 1 / 150, 5
"""Steps of the run that the mean gradient covers at most, as a fraction, and how many it may always cover: β = 0.8 in
runs of up to 750 steps, and 0.9 from 1,500 on (reproduction/results/momenta.json)."""
KEPT_SIZE = 0.75
"""Outputs, in sizes of the inputs, from which a layer lowers the rate of scales: torch's own start gives 0.5, He's 1.1
(reproduction/benchmarks/training/training.py letter-deep)."""
REAL_RATE = 3e-3
"""The rate of AdamW for real matrices, three times torch's: chosen in reproduction/results/rates.json."""
VECTOR_RATES, LONG_RUN = (0.01, 0.03), 5000
"""Norms and biases of networks with norms have the first rate in runs of so many steps or more, and a higher one in
shorter runs, at most the second: chosen in reproduction/results/rates.json and real_rates.json.
Real matrices lose with it, and so do biases of networks without norms. Learned scales of binary layers do a norm's work
and have its rate, lowered with the depth as that of their layers (reproduction/results/scales.json)."""


@dataclass(frozen=True)
class Recommendation:
    """Options of `QPSBGD` for a network; printed, it says why.

    Attributes:
        projection: The projection.
        lr: The rate of latent weights, in units of each layer's initial range.
        momentum: β of the mean gradient.
        warmup: Fraction of the steps over which the rate rises.
        scale: The scale of binary layers that suits the network, as `convert` takes it.
        real_lr: The rate of AdamW for real matrices.
        vector_lr: That for norms and biases.
        scale_lr: That for learned scales.
        reasons: The reason for each of them, by name.
    """

    projection: Projection
    lr: float
    momentum: float
    warmup: float
    scale: Literal["learned", "magnitude"]
    real_lr: float
    vector_lr: float
    scale_lr: float
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        values = {**vars(self), "projection": self.projection.name}
        texts = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in values.items()}
        return "\n".join(f"{name:<12}{texts[name]:<10}{reason}" for name, reason in self.reasons.items())


def recommend(model: Layers, steps: int | None = None) -> Recommendation:
    """The options that `QPSBGD(model, steps=steps)` uses where none are given, each with its reason.

    They depend on the parameters alone, so a model and its `parameters()` give the same; nothing is run or changed.

    Args:
        model: A model, binary layers, parameters, or parameter groups.
        steps: Total number of training steps; None for an unknown number.

    Raises:
        ValueError: There is no binary layer.

    Examples:
        >>> from torch import nn
        >>> from qpsbgd import recommend
        >>> from qpsbgd.nn import BinaryLinear
        >>> print(recommend(nn.Sequential(BinaryLinear(4, 4), nn.BatchNorm1d(4), BinaryLinear(4, 2)), steps=10_000))
        projection  ridge     2 binary layers are fewer than 12
        lr          0.025     0.25 · steps^(−1/4), in initial ranges
        momentum    0.9       a mean of at least 5 steps and a 150th of the run, up to 0.9
        warmup      0.1       the network has norms
        scale       magnitude the network has norms
        real_lr     0.003     AdamW's, for matrices
        vector_lr   0.01      the network has norms: 0.01, more in runs of fewer than 5,000 steps
        scale_lr    0.01      as norms, lowered with the depth where layers keep the sizes of inputs
    """
    network = Network.of(param_groups(model))
    if not network.layers:
        raise ValueError(NO_LAYER)
    return network.recommendation(steps)


@dataclass(frozen=True)
class Network:
    """What recommendations depend on.

    Attributes:
        layers: The binary layers, in the order of all ranks.
        norm_vectors: The number of vectors among the other parameters beyond one bias for each matrix: those of norms.
    """

    layers: Sequence[BinaryLayer]
    norm_vectors: int

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]]) -> Network:
        """The network in parameter groups."""
        splits = [ParameterSplit.of(group["params"]) for group in groups if "params" in group]
        layers = list(dict.fromkeys(layer for split in splits for layer in split.layers))
        real = {p for split in splits for p in (*split.given, *split.inside)}
        real -= {p for layer in layers for p in layer.parameters()}
        shapes = [p.shape for p in real if not is_lazy(p)]
        vectors = sum(len(shape) == 1 and shape[0] > 1 for shape in shapes)
        return cls(layers, max(0, vectors - sum(len(shape) > 1 for shape in shapes)))

    @cached_property
    def trained_layers(self) -> list[BinaryLayer]:
        """The layers that are not frozen."""
        return [layer for layer in self.layers if layer.weight.requires_grad]

    @cached_property
    def is_stacked(self) -> bool:
        """Whether there are only dense layers, and a norm, of weight and bias, for each but the last one."""
        dense = not any(isinstance(layer, BinaryConvNd) for layer in self.trained_layers)
        return dense and self.norm_vectors >= 2 * max(1, len(self.trained_layers) - 1)

    @cached_property
    def rate_factor(self) -> float:
        """The factor on the rate of latent weights, by the layers in a stretch in which their changes add up."""
        return min(_by_depth(self.depth(self.trained_layers)), FEW_NORMS if self.few_norms else 1.0)

    @property
    def few_norms(self) -> bool:
        """Whether there are norms, of weight and bias, but not for nearly every layer."""
        return 0 < self.norm_vectors < 2 * NORMED * (len(self.trained_layers) - 1)

    @cached_property
    def scale_rate_factor(self) -> float:
        """That on learned scales: layers whose outputs shrink, as at torch's own start, need scales that grow."""
        return _by_depth(self.depth([layer for layer in self.trained_layers if _keeps_size(layer)]))

    def depth(self, layers: Sequence[BinaryLayer]) -> float:
        """How many of these layers a stretch between norms has.

        A norm takes out the size of what comes before, but in a stack of dense layers with norms the changes of all
        layers still add up.
        """
        if self.is_stacked:
            return min(len(self.trained_layers), self.norm_vectors // 2)
        return len(layers) / (1 + self.norm_vectors)

    def rate(self, factor: float, steps: int | None) -> float:
        """The rate factor · steps^(−1/4) · `rate_factor`, in units of the initial range."""
        length = AT_LEAST_ONE_OR_NONE.checked("steps", steps) or UNKNOWN_LENGTH
        return factor * math.pow(length, -0.25) * self.rate_factor

    def recommendation(self, steps: int | None) -> Recommendation:
        """The options for a run of this many steps."""
        AT_LEAST_ONE_OR_NONE.checked("steps", steps)
        layers, norms = len(self.trained_layers), bool(self.norm_vectors)
        projection: Projection = Polar() if norms and layers >= DEEP and not self.is_stacked else Ridge()
        if layers < DEEP:
            why = f"{layers} binary layers are fewer than {DEEP}"
        elif not norms:
            why = "the network has no norms"
        else:
            why = "dense layers with a norm each" if self.is_stacked else f"norms, and {layers} binary layers"
        depth = self.depth(self.trained_layers)
        lowered = ""
        if self.rate_factor < 1:
            few = self.rate_factor == FEW_NORMS
            lowered = f" · {FEW_NORMS}: few norms" if few else f" · ({FREE_DEPTH:g}/{depth:.3g})^1.5 for the depth"
        has = "the network has norms" if norms else "the network has no norms"
        vector_lr = vector_rate(steps) if norms else REAL_RATE
        shorter = f": {VECTOR_RATES[0]}, more in runs of fewer than {LONG_RUN:,} steps"
        return Recommendation(
            projection=projection,
            lr=self.rate(RATE, steps),
            momentum=momentum_of(projection, steps),
            warmup=WARMUP if norms else 0.0,
            scale="magnitude" if norms else "learned",
            real_lr=REAL_RATE,
            vector_lr=vector_lr,
            scale_lr=vector_rate(steps) * self.scale_rate_factor,
            reasons={
                "projection": why,
                "lr": f"{RATE} · steps^(−1/4){lowered}, in initial ranges",
                "momentum": f"a mean of at least {LEAST_MEMORY} steps and a {1 / MEMORY:.0f}th of the run, up to "
                f"{projection.capabilities.momentum}",
                "warmup": has,
                "scale": has,
                "real_lr": "AdamW's, for matrices",
                "vector_lr": has + (shorter if norms else ": as matrices"),
                "scale_lr": "as norms, lowered with the depth where layers keep the sizes of inputs",
            },
        )


def momentum_of(projection: Projection, steps: int | None) -> float:
    """β for a projection: its own, or less where the mean, of 1 / (1 − β) steps, would be a large part of the run."""
    length, usual = AT_LEAST_ONE_OR_NONE.checked("steps", steps), projection.capabilities.momentum
    return usual if length is None else min(usual, 1 - 1 / max(LEAST_MEMORY, MEMORY * length))


def vector_rate(steps: int | None) -> float:
    """The rate of norms and their biases: the first of `VECTOR_RATES` times √(5000/steps), at most the second."""
    low, high = VECTOR_RATES
    return min(high, low * (1.0 if steps is None else max(1.0, math.sqrt(LONG_RUN / steps))))


def _by_depth(depth: float) -> float:
    return math.pow(max(1.0, depth / FREE_DEPTH), -1.5)


def scale_unit(layer: BinaryLayer) -> float:
    """The learned scale at which outputs are as large as inputs; 1 at the default gain."""
    unit = 1 / (layer.gain * math.sqrt(_inputs(layer)))
    return 1.0 if math.isclose(unit, 1.0) else unit


def _keeps_size(layer: BinaryLayer) -> bool:
    """Whether outputs are about as large as inputs; they are where the scale is constant."""
    size: Any
    if layer.unit is not None:
        size = layer.unit * layer.weight.detach().abs().mean() * math.sqrt(_inputs(layer))
    elif layer.scale is not None:
        size = layer.scale.detach().square().sum(1).mean().sqrt() / scale_unit(layer)
    else:
        return True
    return float(size.full_tensor() if is_sharded(size) else size) >= KEPT_SIZE


def _inputs(layer: BinaryLayer) -> int:
    return math.prod(layer.weight.shape[1:]) // layer.bits
