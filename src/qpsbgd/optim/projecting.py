"""What an optimiser keeps for its projections: which layer has which, their tapes, and their part of a saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import TrainingTape
from qpsbgd.optim import saved_projections
from qpsbgd.optim.cuda_graph import GraphedSteps
from qpsbgd.optim.layerwise import LayerwiseOptimizer, release, with_warmup
from qpsbgd.optim.members import Layers
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.untrained import SilentLayers
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.projections import PROJECTIONS, Direction, Projection, make_projection
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.solvers.options import BELOW_ONE


class ProjectingOptimizer(LayerwiseOptimizer):
    """An optimiser whose parameter groups have projections.

    Attributes:
        observers: Called with every layer of a step and the figures of its projection; a `Monitor` is one.
    """

    observers: list[Callable[[BinaryLayer, dict[str, float]], None]]

    _answers: list[Direction]
    _cached: dict[BinaryLayer, dict[str, Any]]

    def __init__(self, params: Layers, defaults: dict[str, Any], real: Real) -> None:
        default, self._momentum = defaults["projection"], defaults["momentum"]
        self._tapes: dict[BinaryLayer, TrainingTape] = {}
        self._forget_runs()
        given = default.momentum if self._momentum is None else self._momentum
        super().__init__(params, {**defaults, "momentum": given}, real)

    @property
    def solver(self) -> Solver:
        """The solver of the spins; another one may be set between two steps."""
        for projection in self._projections():
            if hasattr(projection, "solver"):
                found: Solver = projection.solver
                return found
        raise AttributeError('the ridge has no solver; see projection="spins"')

    @solver.setter
    def solver(self, solver: str | Solver) -> None:
        for projection in self._projections():
            if hasattr(projection, "solver"):
                new = replace(projection, solver=make_solver(solver))  # type: ignore[call-arg]
                for group in (self.defaults, *self.binary_groups):
                    group["projection"] = new if group["projection"] is projection else group["projection"]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers or parameters with options of their own: `{"params": model.head, "projection": "spins"}`."""
        group = dict(param_group)
        if (name := group.get("projection")) is not None:
            # Groups that name the same projection share one object, and with it a solver.
            known = {own.name: own for own in (self.defaults["projection"], *self._projections())}
            projection = known[name] if isinstance(name, str) and name in known else make_projection(name)
            group["projection"] = projection
            if self._momentum is None:
                group.setdefault("momentum", projection.momentum)
        super().add_param_group(group)

    def _members(self) -> Iterator[tuple[dict[str, Any], BinaryLayer]]:
        """Groups and layers."""
        for group in self.binary_groups:
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.weight is not weight:
                    raise RuntimeError(f"the weight of {layer} was replaced by a new parameter; make a new optimiser")
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser that was made later; step that one, or make a new one"
                    )
                yield group, layer

    def _projections(self) -> list[Projection]:
        """Every projection once, in the order of the groups."""
        return list({id(group["projection"]): group["projection"] for group in self.binary_groups}.values())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler hands over its scale instead of dividing `.grad`, because more depends on it."""
        return any(projection.absolute for projection in self._projections())

    def _forget(self) -> None:
        for tape in self._tapes.values():
            tape.clear()

    def _forget_runs(self) -> None:
        """Reset what belongs to this object's own steps and is neither copied nor saved."""
        self._cached = {}
        self._answers = []
        self._graphs, self._silent, self._ranks = GraphedSteps(), SilentLayers(), Ranks()
        self.observers = []

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)
        group = next(g for g in self.binary_groups if any(weight is layer.weight for weight in g["params"]))
        projection: Projection = group["projection"]
        rows = None if projection.rows is None else -(-projection.rows // self._ranks.size)  # of all ranks
        tape = TrainingTape(layer.weight, rows, output_grads=projection.output_grads)
        tape.wanted = projection.due(self.state.get(layer.weight, {}).get("step", 0))
        layer.tape = self._tapes[layer] = tape

    def _check_options(self, options: dict[str, Any]) -> None:
        super()._check_options(options)
        BELOW_ONE.checked("momentum", options["momentum"])

    def _check_layer(self, layer: BinaryLayer, options: dict[str, Any]) -> None:
        options["projection"].check(layer)

    def state_dict(self) -> dict[str, Any]:
        """Groups, momentum and the solvers' own states; records of passes not yet stepped are not part of it."""
        state = saved_projections.described(super().state_dict())
        solvers = [getattr(projection, "solver", None) for projection in self._projections()]
        if any(states := [{} if solver is None else solver.state_dict() for solver in solvers]):
            state["solvers"] = states
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training goes on as if it had never stopped. One that does not fit changes nothing."""
        # Those of other projections are refused by name.
        kinds = [type(projection) for projection in self._projections()]
        known = {name for kind in (*kinds, *PROJECTIONS.values()) for name in kind.kept}
        state_dict = with_warmup(state_dict)
        self._check_state(state_dict, known)
        state, before = saved_projections.restored(state_dict, self.param_groups), self.state_dict()
        try:
            self._take(state, state_dict.get("solvers", [state_dict.get("solver", {})]), known)
        except Exception:
            restored = saved_projections.restored(before, self.param_groups)
            self._take(restored, before.get("solvers", [{} for _ in kinds]), known)
            raise

    def _take(self, state: dict[str, Any], solver_states: list[dict[str, Any]], known: set[str]) -> None:
        """Put a checked state, and those of the projections' solvers, in place of the present ones."""
        super().load_state_dict(state)
        for projection, solver_state in zip(self._projections(), solver_states, strict=False):
            if hasattr(projection, "solver"):
                projection.solver.load_state_dict(solver_state)
        self._cached, self._graphs = {}, GraphedSteps()
        # torch casts state to the parameter's type, but that of half-precision layers stays in single precision.
        weights = [p for group in self.param_groups for p in group["params"]]
        for index, kept in state["state"].items():
            for name, value in kept.items():
                if name in known and isinstance(value, Tensor):
                    self.state[weights[index]][name] = value.clone().to(weights[index].device)
        for layer in self._layers.values():
            self._adopt(layer)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_momentum": self._momentum}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_layers" in state:
            self._tapes = {}
            self._forget_runs()
        super().__setstate__(state)
