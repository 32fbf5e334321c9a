"""The steps of the spins: families of the rows, the solver's answers, moved weights, and the means that are kept."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim.blocks import Blocks
from qpsbgd.optim.ranks import Ranks
from qpsbgd.optim.step import LayerOptions, LayerStep, averaged, moved
from qpsbgd.optim.step_figures import Observer, now, projection
from qpsbgd.optim.together import shared_families, shared_solutions
from qpsbgd.qubo import QuboFamily, Solution, binary_map
from qpsbgd.solvers import Solver
from qpsbgd.solvers.search.descent import Descent

if TYPE_CHECKING:
    from qpsbgd.optim.cuda_graph import GraphCache, GraphedStep

_FAMILY = ("quadratic", "linear", "offset")
_SPINS = "spins"
STATE = (*_FAMILY, _SPINS)
"""Tensors that are kept of a layer: the mean family, and the last spins where the solver begins with them."""


class SpinsSteps:
    """Makes the steps of one optimiser, and holds what is neither copied nor saved with it.

    Attributes:
        graphs: Captured steps, on a GPU.
    """

    def __init__(self) -> None:
        self.graphs: GraphCache | None = None
        self._solutions: list[Solution] = []
        self._replayed: GraphedStep | None = None

    @property
    def solutions(self) -> list[Solution]:
        """The answers of the last step."""
        if self._replayed is not None:  # copied now: the graph's next step overwrites them
            self._solutions, self._replayed = self._replayed.solutions(), None
        return self._solutions

    def step(
        self,
        parts: Sequence[LayerStep],
        solver: Solver,
        *,
        states: MutableMapping[Tensor, Any],
        tell: Observer | None,
        ranks: Ranks,
    ) -> None:
        """Move the weights of the parts and bring their means forward, all after the last answer has come.

        Args:
            parts: The blocks of all layers that take part, those of a layer one after the other.
            solver: Answers the families.
            states: The optimiser's state per weight.
            tell: Takes the figures of every layer; None where nobody asks for them.
            ranks: The processes that make this step together.
        """
        if ranks.size > 1:
            fresh = shared_families(parts, ranks)
        elif tell is None and self.graphed(parts, solver, states):
            return
        else:
            fresh = [_family(part) for part in parts]
        families = [averaged(part.mean, new, part.rate) for part, new in zip(parts, fresh, strict=True)]
        if ranks.size > 1:
            solutions = _shared(solver, parts, families, tell=tell, ranks=ranks)
        elif tell is not None:
            solutions = _observed(solver, parts, families, tell=tell)
        else:
            solutions = _solve(solver, families, [part.start for part in parts])
        moves: dict[BinaryLayer, list[Tensor]] = {}
        for part, new, family, solution in zip(parts, fresh, families, solutions, strict=True):
            options = part.options
            weight = moved(part.weight, new, family, solution.spins, lr=options.lr, clip=options.clip)
            moves.setdefault(part.layer, []).append(weight)
        for part, family, solution in zip(parts, families, solutions, strict=True):
            if part.index == 0:
                part.layer.weight.copy_(part.blocks.joined(torch.stack(moves[part.layer]), part.layer.weight))
            _keep(part, family, solution.spins if starts_warm(solver) else None, states)
        self._solutions, self._replayed = solutions, None

    def graphed(self, parts: Sequence[LayerStep], solver: Solver, states: MutableMapping[Tensor, Any]) -> bool:
        """Make the step as one CUDA graph if these shapes have been seen before; False if that is not possible."""
        if not all(part.layer.weight.is_cuda for part in parts):
            return False
        from qpsbgd.optim.cuda_graph import GraphCache

        if self.graphs is None:
            self.graphs = GraphCache()
        self._solutions, self._replayed = [], None
        graph = self.graphs.step(parts, solver)
        if graph is None:
            return False
        for part, mean, start in zip(parts, graph.means, graph.starts, strict=True):
            _keep(part, mean, start if starts_warm(solver) else None, states)
        self._replayed = graph
        return True


def parts_of(
    layer: BinaryLayer,
    record: LayerRecord,
    *,
    options: LayerOptions,
    blocks: Blocks,
    state: Mapping[str, Any],
    warm: bool,
) -> list[LayerStep]:
    """The shares of a layer's blocks in a step.

    Args:
        layer: Whose weights are moved.
        record: What it recorded.
        options: Of its parameter group.
        blocks: How it is cut.
        state: What is kept of it.
        warm: Whether the solver begins with the spins of the last step.

    Raises:
        RuntimeError: The state does not fit what the layer recorded.
    """
    rows, grads = blocks.rows(record.inputs), blocks.columns(record.output_grads)
    known = options.momentum and "step" in state
    if known:
        _check_mean(layer, state, rows, grads)
    parts = []
    for index in range(blocks.count):
        mean, start = None, None
        if known:
            own = {name: state[name] if blocks.count == 1 else state[name][index] for name in STATE if name in state}
            mean = QuboFamily.trusted(*(own[name] for name in _FAMILY))
            start = own.get(_SPINS) if warm else None
        part = LayerRecord(rows[index], grads[index])
        parts.append(LayerStep(layer, part, options, mean, start, state["step"] if known else 0, blocks, index))
    return parts


def starts_warm(solver: Solver) -> TypeGuard[Descent]:
    """Whether a solver begins with the spins of the last step."""
    return type(solver) is Descent and solver.warm


def _family(part: LayerStep) -> QuboFamily:
    try:
        return binary_map(part.record.inputs, part.record.output_grads, gain=part.layer.gain, scale=part.options.scale)
    except ValueError as error:
        raise ValueError(f"{part.layer}: {error}") from error


def _solve(solver: Solver, families: list[QuboFamily], starts: Sequence[Tensor | None]) -> list[Solution]:
    if starts_warm(solver):
        pairs = zip(families, starts, strict=True)
        solutions = [solver.solve(f) if s is None else solver.improved(f, s.clone()) for f, s in pairs]
    else:
        solutions = solver.solve_all(families)
    wanted, came = ([tuple(t.shape) for t in ts] for ts in ([f.linear for f in families], [s.spins for s in solutions]))
    if wanted != came:
        raise ValueError(f"{solver} must return spins of shapes {wanted}, got {came}; see qpsbgd.testing")
    if not all(bool((solution.spins.abs() == 1).all()) for solution in solutions):
        raise ValueError(f"{solver} returned spins other than −1 and +1; see qpsbgd.testing")
    return solutions


def _observed(
    solver: Solver, parts: Sequence[LayerStep], families: list[QuboFamily], *, tell: Observer
) -> list[Solution]:
    """`_solve`, layer by layer where the solver does so anyway, with what the observers are told."""
    together = not starts_warm(solver) and type(solver).solve_all is not Solver.solve_all
    solutions: list[Solution] = []
    seconds: list[float] = []
    for call in [list(range(len(parts)))] if together else _by_layer(parts):
        begun = now(families[call[0]].linear.device)
        solutions += _solve(solver, [families[index] for index in call], [parts[index].start for index in call])
        seconds += [now(families[call[-1]].linear.device) - begun] * len(call)
    _tell_all(parts, families, solutions, seconds=seconds, tell=tell)
    return solutions


def _shared(
    solver: Solver, parts: Sequence[LayerStep], families: list[QuboFamily], *, tell: Observer | None, ranks: Ranks
) -> list[Solution]:
    """The answers, of which every rank finds its share; a solver with a state is asked by rank 0 alone."""
    begun = 0.0 if tell is None else now(families[0].linear.device)
    solutions = shared_solutions(
        partial(_solve, solver),
        families,
        [part.start for part in parts],
        ranks,
        alone=type(solver).state_dict is not Solver.state_dict,
    )
    if tell is not None:
        seconds = [now(families[0].linear.device) - begun] * len(parts)
        _tell_all(parts, families, solutions, seconds=seconds, tell=tell)
    return solutions


def _by_layer(parts: Sequence[LayerStep]) -> list[list[int]]:
    """The indices of the parts of each layer."""
    return [list(own) for _, own in groupby(range(len(parts)), lambda index: parts[index].layer)]


def _tell_all(
    parts: Sequence[LayerStep],
    families: Sequence[QuboFamily],
    solutions: Sequence[Solution],
    *,
    seconds: Sequence[float],
    tell: Observer,
) -> None:
    for own in _by_layer(parts):
        first = parts[own[0]]
        figures = projection(
            [families[index] for index in own],
            [solutions[index] for index in own],
            blocks=first.blocks,
            like=first.layer.weight,
        )
        tell(first.layer, {**figures, "seconds": seconds[own[0]]})


def _keep(part: LayerStep, family: QuboFamily, spins: Tensor | None, states: MutableMapping[Tensor, Any]) -> None:
    """Make `family` the block's mean, in the existing tensors, because a CUDA graph keeps their addresses."""
    if not part.options.momentum:
        return
    state = states[part.layer.weight]
    kept = {name: getattr(family, name) for name in _FAMILY}
    if spins is not None:
        kept[_SPINS] = spins
    for name, value in kept.items():
        if part.blocks.count > 1:
            state.setdefault(name, value.new_zeros(part.blocks.count, *value.shape))[part.index] = value
        elif name not in state:
            state[name] = value
        elif state[name] is not value:
            state[name].copy_(value)
    state["step"] = part.count + 1


def _check_mean(layer: BinaryLayer, state: Mapping[str, Any], rows: Tensor, grads: Tensor) -> None:
    """Raise RuntimeError where the momentum does not fit what the layer recorded."""
    linear = state["linear"]
    wanted = (*rows.shape[:1], rows.shape[2], grads.shape[2])
    if tuple(linear.shape) not in (wanted, wanted[1:]) or (wanted[0] > 1 and linear.ndim < 3):
        raise RuntimeError(
            f"the momentum of {layer} has the shape {tuple(linear.shape)}; load a state of the same model"
        )
    for old, new in ((linear.dtype, rows.dtype), (linear.device, rows.device)):
        if old != new:
            raise RuntimeError(
                f"the momentum of {layer} is kept in {old}, but the layer now works in {new}; convert or move the "
                "model before the optimiser is made, or make a new optimiser"
            )
