"""The paper's theory as tools: full-batch gradients, fixed points and directions of a model, P-SBGD on any function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from qpsbgd.analysis.minimize import Minimum, minimize
from qpsbgd.analysis.monitor import Observation
from qpsbgd.binary_map import Scale, binary_map
from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.contexts import evaluation_mode, temporary_attributes
from qpsbgd.nn.tape import LayerRecord, record_rows
from qpsbgd.solvers import Solver, make_solver

__all__ = [
    "DirectionTest",
    "FixedPoints",
    "FullBatch",
    "Minimum",
    "Observation",
    "direction_test",
    "fixed_points",
    "full_batch",
    "minimize",
]

Batches = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class FullBatch:
    """One layer over all data: its name, the layer, its rows, and ∂E/∂W in the shape of `weight`."""

    name: str
    layer: BinaryLayer
    record: LayerRecord
    gradient: Tensor


def full_batch(model: nn.Module, data: Batches, loss: Loss) -> list[FullBatch]:
    """One entry per binary layer that a gradient reached, with the mean loss over all of `data`.

    The model is evaluated as in `model.eval()`, with binary weights whatever its optimiser does in training. No
    parameter, `.grad`, buffer or optimiser's record is changed.

    Args:
        model: A model with binary layers.
        data: (inputs, targets), or batches of them, as a DataLoader gives.
        loss: loss(model(inputs), targets), a mean over the batch.
    """
    pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor)
    batches = cast(list[tuple[Tensor, Tensor]], [data] if pair else list(data))
    total = sum(len(targets) for _, targets in batches)
    if not total:
        raise ValueError("data holds no samples")
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, BinaryLayer)]
    if not named:
        raise ValueError("the model has no binary layer")
    grouped = [name for name, layer in named if layer.groups > 1]
    if grouped:
        raise ValueError(f"the analysis takes layers of one group, but {', '.join(grouped)} has several")
    layers = [layer for _, layer in named]
    weights = [layer.weight for layer in layers]
    recording = temporary_attributes(layers, training=True, latent_forward=False)  # layers record in training alone
    with (
        torch.enable_grad(),
        evaluation_mode(model),
        recording,
        temporary_attributes(weights, requires_grad=True),
        record_rows(layers) as tapes,
    ):
        for inputs, targets in batches:
            value = loss(model(inputs), targets) * (len(targets) / total)
            torch.autograd.grad(value, weights, allow_unused=True)
    full_batches = []
    for (name, layer), tape in zip(named, tapes, strict=True):
        if isinstance(record := tape.read(), LayerRecord):
            if layer.scaling is not None:
                raise ValueError(f"the theory is about layers without scales, got {layer}")
            gradient = layer.gain * (record.output_grads.T @ record.inputs).reshape(layer.weight.shape)
            full_batches.append(FullBatch(name, layer, record, gradient))
    return full_batches


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
    parts = full_batch(model, data, loss)
    families = [binary_map(p.record.inputs, p.record.output_grads, gain=p.layer.gain, scale=scale) for p in parts]
    holds = {}
    proven = True
    for part, family, solution in zip(parts, families, chosen.solve_all(families), strict=True):
        idle = (family.linear == 0).all(0)
        weights = part.layer.binary_weight.flatten(1).T
        holds[part.name] = ((solution.spins == -weights) | idle).T.reshape(part.layer.weight.shape)
        proven &= bool((solution.proven_optimal | idle).all())
    return FixedPoints(holds, proven)


@dataclass(frozen=True)
class DirectionTest:
    """k of n compared entries have the gradient's sign; results of several updates can be added."""

    k: int
    n: int

    @property
    def z(self) -> float:
        """Z = (k − n/2)/√(n/4); above 1.96, random directions are ruled out at 95 %."""
        return (self.k - self.n / 2) / math.sqrt(self.n / 4) if self.n else 0.0

    def __add__(self, other: DirectionTest) -> DirectionTest:
        return DirectionTest(self.k + other.k, self.n + other.n)


def direction_test(projected: Tensor | Sequence[Tensor], gradient: Tensor | Sequence[Tensor]) -> DirectionTest:
    """Compare the signs of projected directions with those of the full-batch gradient, entry by entry.

    Entries where either is zero say nothing and are left out.

    Args:
        projected: Binary directions, one tensor or one per layer (`full_batch` gives them in the shape of `weight`).
        gradient: The full batch's gradients, of the same shapes.
    """
    left, right = ([t] if isinstance(t, Tensor) else list(t) for t in (projected, gradient))
    if [t.shape for t in left] != [t.shape for t in right]:
        raise ValueError(f"shapes differ: {[tuple(t.shape) for t in left]} and {[tuple(t.shape) for t in right]}")
    result = DirectionTest(0, 0)
    for direction, slope in zip(left, right, strict=True):
        if not (direction.isfinite().all() and slope.isfinite().all()):
            raise ValueError("directions and gradients must be finite")
        compared = (direction != 0) & (slope != 0)
        agree = compared & (direction.sign() == slope.sign())
        result += DirectionTest(int(agree.sum()), int(compared.sum()))
    return result
