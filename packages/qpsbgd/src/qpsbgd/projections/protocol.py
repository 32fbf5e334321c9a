"""The protocol of projections, which turn the layers' gradients and records into directions for the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.projections.blocks import Blocks
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, check_options


class LayerShards(Protocol):
    """The ranks that hold a sharded layer, each some of its output units; every method is a collective."""

    def all_gather(self, values: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape, stacked."""

    def gather_units(self, part: Tensor, units: int) -> tuple[Tensor, slice]:
        """All `units` output units of a layer, and which of them this rank's part are."""


DERIVED = MappingProxyType({"derived": True})
"""The metadata of a field of `LayerState` that follows from the others: it is not saved, and None in a resumed run."""


@dataclass(eq=False)
class LayerState:
    """What a projection keeps of a layer from step to step: tensors and numbers, None where there is none.

    Attributes:
        step: The number of steps made.
        gradient: S̄, the mean gradient.
    """

    step: int = 0
    gradient: Tensor | None = None

    @classmethod
    def saved_names(cls) -> set[str]:
        """The names of all that is saved with the optimiser."""
        return {entry.name for entry in fields(cls) if not entry.metadata}

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> LayerState:
        """The state that had these `entries`."""
        return cls(**{entry.name: entries[entry.name] for entry in fields(cls) if entry.name in entries})

    def entries(self, *, derived: bool) -> dict[str, Any]:
        """What makes the next step, as a state dict holds it, or what follows from that."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if bool(entry.metadata) == derived}
        return {n: value for n, value in values.items() if isinstance(value, Tensor) or value != getattr(type(self), n)}

    def forget_derived(self) -> None:
        """Drop what follows from the rest, which has changed."""
        for name in self.entries(derived=True):
            setattr(self, name, None)

    def tensors(self) -> list[Tensor]:
        """All tensors."""
        return [value for entry in fields(self) if isinstance(value := getattr(self, entry.name), Tensor)]


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """A projection's input for one layer: its gradient, its record and the state after the last step.

    Attributes:
        layer: A layer with a gradient.
        grad: The gradient of its weight, at least in single precision.
        record: The moments of its inputs, or rows with output gradients; None in steps that record nothing.
        momentum: β of its parameter group.
        rate: The step size of its weights, by the schedule.
        state: What the projection kept after the last step.
        shards: The ranks that hold a sharded layer: `grad`, `state` and the direction are those of this rank's
            output units.

    Projections leave `state` as it is; the step replaces its contents once all directions are known.
    """

    layer: BinaryLayer
    grad: Tensor
    record: LayerRecord | LayerMoments | None
    momentum: float
    state: Any  # a `Capabilities.state`
    shards: LayerShards | None = None
    rate: float = 0.0


@dataclass(frozen=True, eq=False)
class Direction:
    """A layer's direction, and what to keep once the whole step has succeeded.

    Attributes:
        values: The weights move by −lr times this; of the shape of the weight.
        state: The state for the next step.
        solutions: Returns the solver's solutions, one per block, if there is a solver.
        figures: Returns numbers for a `Monitor`; called only if there is one.
    """

    values: Tensor
    state: LayerState = field(default_factory=LayerState)
    solutions: Callable[[], list[Solution]] = list
    figures: Callable[[], dict[str, float]] = dict


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What the optimiser, ranks and CUDA graphs must know about a kind of projection.

    Attributes:
        momentum: β where the user gives none; short runs have less.
        records: Whether layers record anything for it.
        takes_rate: Whether directions are whole steps, made at the rate that the projection is given.
        state: The class of its state.
        sharded: The fields of the state with a dimension of output units, and which dimension; empty where sharded
            layers cannot be served.
    """

    momentum: float = 0.9
    records: bool = True
    takes_rate: bool = False
    state: type[LayerState] = LayerState
    sharded: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Projection(ABC):
    """Options and mathematics of a projection; it holds no state.

    A new one is a frozen dataclass in one file. Most derive from `SystemProjection`, which builds the layer's system,
    and have one method. One that uses a solver has it as the field `solver`.

    Args:
        block: Layers with more inputs are cut into blocks of at most this many, each a separate problem; None for no
            limit. It bounds the memory of Q̄ by `block` numbers per input.
        rows: Most rows used from each pass, over all ranks together; if there are more, such as a convolution's
            patches, evenly spaced ones are taken. None uses all.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    block: int | None = field(default=1024, kw_only=True)
    rows: int | None = field(default=2048, kw_only=True)

    def __post_init__(self) -> None:
        check_options(self, block=AT_LEAST_ONE_OR_NONE, rows=AT_LEAST_ONE_OR_NONE)

    @property
    def solver(self) -> Solver | None:
        """The solver that it uses; a projection that has one declares it as a field."""
        return None

    @property
    def vectors(self) -> int:
        """Binary vectors per column in a step: the number of calls of the solver."""
        return 0 if self.solver is None else 1

    def family_shapes(self, layer: BinaryLayer) -> list[tuple[int, int]]:
        """Spins and columns of the families that a layer makes in one call of the solver."""
        blocks = Blocks.of(layer, self.block)
        return [(blocks.width, blocks.outputs)] * blocks.count

    @property
    def absolute(self) -> bool:
        """Whether directions depend on the size of the output gradients."""
        return False

    def records_at(self, step: int) -> bool:
        """Whether the layers record in a step, counted from 0."""
        return self.capabilities.records

    def moments(self, layer: BinaryLayer) -> Callable[..., Tensor] | None:
        """A function of rows (B, n) of a layer's inputs that is recorded; None for rows with their output gradients.

        Results are sums over rows: with a second argument, the function adds to it and returns it.
        """
        return None

    def ready(self, inputs: LayerInputs) -> bool:
        """Whether a layer can take part in a step: with a record, or with moments of earlier ones."""
        records = self.capabilities.records
        return inputs.record is not None or not records or getattr(inputs.state, "gram", None) is not None

    def capturable(self, inputs: LayerInputs) -> bool:
        """Whether a step with these inputs on a GPU never waits for it, so that it can become a CUDA graph."""
        return False

    def with_network_default(self, default: Projection) -> Projection:
        """This projection for a network whose default is another one; most ignore that."""
        return self

    def check(self, layer: BinaryLayer) -> None:  # noqa: B027  # most serve all layers
        """Raise TypeError or ValueError for a layer that this projection cannot serve."""

    @abstractmethod
    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """The directions of all layers that take part in the step; nothing that was passed is changed.

        Raises:
            ValueError: The rows of a layer are not finite, or the solver's answers are not spins.
            RuntimeError: The state of a layer does not fit it.
        """

    def describe(self) -> dict[str, Any]:
        """The name and all options that are plain values, as saved in a state dict."""
        options = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain = {name: value for name, value in options.items() if isinstance(value, int | float | str | None)}
        return {"name": self.name, **plain}

    def with_saved_options(self, saved: Any) -> Projection:
        """This projection with the options that `describe` has saved; itself where they are the same.

        Raises:
            ValueError: They are those of another projection.
        """
        if not isinstance(saved, Mapping) or not isinstance(saved.get("name"), str):
            raise ValueError(f"a saved projection must have a name and options, got {saved!r}")
        name, options = saved["name"], {option: value for option, value in saved.items() if option != "name"}
        if name != self.name:
            raise ValueError(
                f'this state was saved with projection="{name}", but this optimiser has "{self.name}"; make it '
                f'with projection="{name}", or start the optimiser anew from the saved model'
            )
        if unknown := sorted(options.keys() - self.describe().keys()):
            raise ValueError(f"the saved projection has {', '.join(unknown)}, which {self.name} has not")
        same = all(getattr(self, option) == value for option, value in options.items())
        return self if same else replace(self, **options)

    def with_solver(self, solver: Solver) -> Projection:
        """This projection with another solver."""
        return replace(self, solver=solver)  # type: ignore[call-arg]


def mean_gradient(inputs: LayerInputs) -> Tensor:
    """S̄ after this step, β S̄ + (1−β) ∂E/∂W, from that of the state, which must fit."""
    last, grad = inputs.state.gradient, inputs.grad
    if last is None:
        return grad.clone()
    check_fits(inputs.layer, last, grad)  # without momentum, too: the rest of the state would not fit either
    return torch.lerp(grad, last, inputs.momentum) if inputs.momentum else grad.clone()


def has_gradient(inputs: LayerInputs) -> Tensor:
    """Whether any entry of a layer's gradient is not zero, on the device: what memory has left is no reason to move."""
    count = torch.count_nonzero(inputs.grad)
    return (count if inputs.shards is None else inputs.shards.all_gather(count)).any()


def zero_idle_units(mean: Tensor, grad: Tensor) -> Tensor:
    """S̄ without the units whose gradient is exactly zero in this step, for projections that give every unit one size.

    However small the rest of a unit's memory is, they would make a full step of it.
    """
    moving = torch.count_nonzero(grad.flatten(1), 1) > 0
    return mean * moving.reshape(-1, *(1,) * (mean.ndim - 1))


def check_fits(layer: BinaryLayer, kept: Tensor, new: Tensor) -> None:
    """Raise RuntimeError where what is kept of a layer has another type, place or shape than what is new."""
    if kept.dtype != new.dtype or kept.device != new.device or kept.shape != new.shape:
        given, wanted = ((t.dtype, t.device, tuple(t.shape)) for t in (kept, new))
        raise RuntimeError(
            f"the state or momentum of {layer} is {given}, but must be {wanted}; convert or move the model before the "
            "optimiser is made, load a state of the same model, or make a new optimiser"
        )
