"""QP-SBGD: step against the binary vector that explains a layer's output gradients best."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord, TrainingTape
from qpsbgd.openmp import guard_fork
from qpsbgd.optim.layerwise import Layers, LayerwiseOptimizer, check_range, release
from qpsbgd.optim.step import LayerOptions, LayerStep, averaged, moved
from qpsbgd.qubo import QuboFamily, Solution, binary_map
from qpsbgd.qubo.binary_map import Scale, check_scale
from qpsbgd.solvers import Solver, make_solver

if TYPE_CHECKING:
    from qpsbgd.optim.cuda_graph import GraphCache, GraphedStep
    from qpsbgd.solvers.annealer.budget import Estimate

_FAMILY = ("quadratic", "linear", "offset")
_SILENT_STEPS = 10
"""Steps after which a layer that has never recorded anything is reported."""


class QPSBGD(LayerwiseOptimizer):
    """Quantum projected stochastic binary-gradient descent (Alg. 1), with momentum on the QUBO.

        Q̄ ← β Q̄ + (1−β) Q,   S̄ ← β S̄ + (1−β) S,   G = argmin over {−1, +1} of the family (Q̄, S̄),
        Ω ← clip(Ω − lr · G, ±clip)

    where (Q, S) is the `binary_map` of the rows that the layer saw since the last step. Use it like any optimiser:
    `zero_grad`, `backward`, `step`. Rows are recorded by `backward` calls that reach the layer's weight, and forgotten
    by `zero_grad` of the optimiser or the model; other passes, such as `torch.autograd.grad` for a saliency map, do
    not count. Weights that the rows say nothing about stay: all weights of a column without gradient, and those of an
    input that was zero in every row.

    Args:
        model_or_layers: A model, binary layers, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights, which live in [−1, 1].
        solver: Name of a solver or a solver object; see `qpsbgd.solvers`.
        scale: κ of `binary_map`, or "literal" for the paper's equation as printed.
        momentum: β. Zero is the paper's method.
        clip: Bound of the latent weights; None leaves them free, as the paper does.

    Attributes:
        solver: The solver; another one may be set between two steps.
    """

    _tapes: dict[BinaryLayer, TrainingTape]
    _solutions: list[Solution]
    _replayed: GraphedStep | None
    _graphs: GraphCache | None
    _steps: int
    _heard: set[BinaryLayer]
    _reported: set[BinaryLayer]

    # GradScaler then hands over its scale instead of dividing .grad, which this optimiser does not use.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model_or_layers: Layers,
        lr: float = 0.01,
        solver: str | Solver = "auto",
        scale: Scale = 1.0,
        momentum: float = 0.9,
        *,
        clip: float | None = 1.0,
    ) -> None:
        self.solver = make_solver(solver)
        self._tapes = {}
        self._forget_runs()
        super().__init__(model_or_layers, {"lr": lr, "scale": scale, "momentum": momentum, "clip": clip})

    @property
    def solutions(self) -> list[Solution]:
        """The solver's answers of the last step, one per updated layer, in the order of the layers."""
        if self._replayed is not None:  # copied now: the graph's next step overwrites them
            self._solutions, self._replayed = self._replayed.solutions(), None
        return self._solutions

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Solve the recorded QUBOs and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after the solver has answered, so a step whose solver failed or was
        interrupted can be repeated.

        Raises:
            RuntimeError: No layer has recorded a backward pass since the last step, or several processes train
                together: nothing would keep their weights equal.
            ValueError: A layer saw NaN or infinite values.
        """
        loss = self._run(closure)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._forget()
            return loss

        try:
            guard_fork()
            _check_single_process()
            parts = self._parts()
            # In an autocast block the QUBOs would be computed in half precision.
            with torch.autocast(parts[0].layer.weight.device.type, enabled=False):
                if not self._graphed(parts):
                    self._launch(parts)
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._forget()
        return loss

    def _launch(self, parts: Sequence[LayerStep]) -> None:
        """The step as the class describes it."""
        fresh = [_family(part) for part in parts]
        families = [averaged(part.mean, new, part.rate) for part, new in zip(parts, fresh, strict=True)]
        solutions = self._solve(families)
        weights = [
            moved(part.layer.weight, new, family, solution.spins, lr=part.options.lr, clip=part.options.clip)
            for part, new, family, solution in zip(parts, fresh, families, solutions, strict=True)
        ]
        for part, family, weight in zip(parts, families, weights, strict=True):
            part.layer.weight.copy_(weight)
            self._keep(part, family)
        self._solutions = solutions

    def _graphed(self, parts: Sequence[LayerStep]) -> bool:
        """Make the step as one CUDA graph if these shapes have been seen before; False if that is not possible."""
        if not all(part.layer.weight.is_cuda for part in parts):
            return False
        from qpsbgd.optim.cuda_graph import GraphCache

        if self._graphs is None:
            self._graphs = GraphCache()
        self._solutions, self._replayed = [], None
        graph = self._graphs.step(parts, self.solver)
        if graph is None:
            return False
        for part, mean in zip(parts, graph.means, strict=True):
            self._keep(part, mean)
        self._replayed = graph
        return True

    def _keep(self, part: LayerStep, family: QuboFamily) -> None:
        """Make `family` the layer's mean, in the existing tensors, because a CUDA graph keeps their addresses."""
        if not part.options.momentum:
            return
        state = self.state[part.layer.weight]
        for name in _FAMILY:
            value = getattr(family, name)
            if name not in state:
                state[name] = value
            elif state[name] is not value:
                state[name].copy_(value)
        state["step"] = part.count + 1

    def estimate(self, steps: int = 1) -> Estimate:
        """The cost of that many steps on the solver's annealer: submissions and QPU seconds; nothing is sent.

        Raises:
            TypeError: The solver uses no annealer.
        """
        if not hasattr(self.solver, "estimate"):
            raise TypeError(f"{self.solver} uses no annealer, so its steps cost no QPU time; see the solver 'dwave'")
        shapes = [(layer.weight[0].numel(), len(layer.weight)) for layer in self._layers.values()]
        cost: Estimate = self.solver.estimate(shapes)
        return cost * steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._forget()

    def _parts(self) -> list[LayerStep]:
        """What the layers recorded, with their options and means."""
        parts = []
        for group in self.param_groups:
            options = LayerOptions.of(group)
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.weight is not weight:
                    raise RuntimeError(f"the weight of {layer} was replaced by a new parameter; make a new optimiser")
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser that was made later; step that one, or make a new one"
                    )
                record = self._tapes[layer].read()
                if record is not None:
                    if options.scale == "literal":
                        record = LayerRecord(record.inputs, record.output_grads / self._grad_scale())
                    parts.append(self._part(layer, record, options))
        if not parts:
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes; under torch.func nothing "
                "is recorded)"
            )
        self._report_silent_layers({part.layer for part in parts})
        return parts

    def _part(self, layer: BinaryLayer, record: LayerRecord, options: LayerOptions) -> LayerStep:
        state = self.state.get(layer.weight, {})
        if not options.momentum or "step" not in state:
            return LayerStep(layer, record, options, None, 0)
        mean = QuboFamily.trusted(*(state[name] for name in _FAMILY))
        if mean.linear.shape != (record.inputs.shape[1], record.output_grads.shape[1]):
            raise RuntimeError(
                f"the momentum of {layer} has the shape {tuple(mean.linear.shape)}; load a state of the same model"
            )
        for old, new in ((mean.linear.dtype, record.inputs.dtype), (mean.linear.device, record.inputs.device)):
            if old != new:
                raise RuntimeError(
                    f"the momentum of {layer} is kept in {old}, but the layer now works in {new}; convert or move the "
                    "model before the optimiser is made, or make a new optimiser"
                )
        return LayerStep(layer, record, options, mean, state["step"])

    def _report_silent_layers(self, recorded: set[BinaryLayer]) -> None:
        """Warn once about each trainable layer that is not being trained."""
        self._steps += 1
        self._heard |= recorded
        if len(recorded) == len(self._layers):
            return
        for layer in self._layers.values():
            if layer in recorded or layer in self._reported or not layer.weight.requires_grad:
                continue
            if not layer.training:
                reason = "is in evaluation mode, so it records nothing; call train() on it, or freeze its weight"
            elif layer not in self._heard and self._steps >= _SILENT_STEPS:
                reason = (
                    f"has recorded nothing in {self._steps} steps: either no loss depends on it, or a module reads "
                    "its .weight instead of calling it"
                )
            else:
                continue
            self._reported.add(layer)
            warnings.warn(f"{layer} is not trained: it {reason}", stacklevel=_callers_level())

    def _solve(self, families: list[QuboFamily]) -> list[Solution]:
        solutions = self.solver.solve_all(families)
        wanted, came = (
            [tuple(t.shape) for t in ts] for ts in ([f.linear for f in families], [s.spins for s in solutions])
        )
        if wanted != came:
            raise ValueError(f"{self.solver} must return spins of shapes {wanted}, got {came}; see qpsbgd.testing")
        if not all(bool((solution.spins.abs() == 1).all()) for solution in solutions):
            raise ValueError(f"{self.solver} returned spins other than −1 and +1; see qpsbgd.testing")
        return solutions

    def _grad_scale(self) -> Tensor | float:
        """The loss factor of a GradScaler; only the literal equation depends on the size of the gradient."""
        if not hasattr(self, "found_inf"):
            return 1.0
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        if grad_scale is None:
            raise RuntimeError('scale="literal" does not work after GradScaler.unscale_(); leave that call out')
        return grad_scale

    def _forget(self) -> None:
        for tape in self._tapes.values():
            tape.clear()

    def _forget_runs(self) -> None:
        """Reset what belongs to this object's own steps and is neither copied nor saved."""
        self._solutions, self._replayed, self._graphs = [], None, None
        self._steps, self._heard, self._reported = 0, set(), set()

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)
        layer.tape = self._tapes[layer] = TrainingTape(layer.weight)

    def _check_options(self, options: dict[str, Any]) -> None:
        check_range(options, "lr", least=0)
        check_range(options, "momentum", least=0, below=1)
        check_range(options, "clip", above=0, optional=True)
        check_scale(options["scale"])

    def state_dict(self) -> dict[str, Any]:
        """Groups, momentum and the solver's own state; records of passes not yet stepped are not part of it."""
        state: dict[str, Any] = super().state_dict()
        if solver_state := self.solver.state_dict():
            state["solver"] = solver_state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        self._check_state(state_dict, {*_FAMILY, "step"})
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.solver.load_state_dict(state_dict.get("solver", {}))
        # torch casts state to the parameter's type, but QUBOs of half-precision layers stay in single precision.
        weights = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            weight = weights[index]
            for name in saved.keys() & set(_FAMILY):
                self.state[weight][name] = saved[name].clone().to(weight.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "solver": self.solver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_layers" in state:
            self._tapes = {}
            self._forget_runs()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix(')')}solver: {self.solver}\n)"


def _family(part: LayerStep) -> QuboFamily:
    try:
        return binary_map(part.record.inputs, part.record.output_grads, gain=part.layer.gain, scale=part.options.scale)
    except ValueError as error:
        raise ValueError(f"{part.layer}: {error}") from error


def _callers_level() -> int:
    """The `stacklevel` with which a warning points at the code that called the optimiser, outside torch and qpsbgd."""
    level, frame = 1, inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "qpsbgd"):
        level, frame = level + 1, frame.f_back
    return level


def _check_single_process() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise RuntimeError(
            f"QPSBGD trains in one process, but torch.distributed has {distributed.get_world_size()} ranks: each would "
            "solve the QUBOs of its own rows, and their weights would drift apart; train in one process, or use "
            "BinaryConnect, whose gradients DistributedDataParallel averages"
        )
