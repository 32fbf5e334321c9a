"""QP-SBGD: step against the vector that explains a layer's output gradients best, over ±1 or over the reals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import InputTape, LayerRecord, TrainingTape
from qpsbgd.openmp import guard_fork
from qpsbgd.optim import ridge
from qpsbgd.optim.binaryconnect import normalized
from qpsbgd.optim.blocks import Blocks
from qpsbgd.optim.layerwise import LayerwiseOptimizer, callers_level, check_range, check_whole, clipped, release
from qpsbgd.optim.members import Layers
from qpsbgd.optim.ridge import Penalty
from qpsbgd.optim.step import LayerOptions, LayerStep, averaged, moved
from qpsbgd.optim.step_figures import now, projection
from qpsbgd.qubo import QuboFamily, Solution, binary_map
from qpsbgd.qubo.binary_map import Scale, check_scale
from qpsbgd.solvers import Solver, make_solver
from qpsbgd.solvers.search.descent import Descent

if TYPE_CHECKING:
    from qpsbgd.optim.cuda_graph import GraphCache, GraphedStep
    from qpsbgd.solvers.annealer.budget import Estimate

Projection = Literal["spins", "ridge"]
Observer = Callable[[BinaryLayer, dict[str, float]], None]

_FAMILY = ("quadratic", "linear", "offset")
_SPINS = "spins"
_KEPT = (*_FAMILY, _SPINS)
_SILENT_STEPS = 10
"""Steps after which a layer that has never recorded anything is reported."""
_RATE_FACTOR = 2.8
TRAINING = Descent(warm=True)
"""The solver of training: a local minimum near the last step's is enough, and cheap."""
_RANGES = 2.0
"""clip="range": the bound of the latent weights in initial ranges."""


class QPSBGD(LayerwiseOptimizer):
    """Quantum projected stochastic binary-gradient descent (Alg. 1), over ±1 or over the reals.

        spins:   Q̄ ← β Q̄ + (1−β) Q,   S̄ ← β S̄ + (1−β) S,   G = argmin over {−1, +1} of the family (Q̄, S̄)
        ridge:   G = (Q̄ + δ · mean(diag Q̄) · I)⁻¹ S̄, divided by its root mean square
        both:    Ω ← clip(Ω − lr · G, ±clip)

    "spins" is the paper's method, for annealers and solvers of QUBOs: (Q, S) is the `binary_map` of the rows that the
    layer saw since the last step. "ridge" solves the same least squares over the reals, with one factorisation for all
    columns of a layer: see `qpsbgd.optim.ridge`. Use it like any optimiser: `zero_grad`, `backward`, `step`.

    With "spins", rows are recorded by `backward` calls that reach the layer's weight, and forgotten by `zero_grad` of
    the optimiser or the model; other passes, such as `torch.autograd.grad` for a saliency map, do not count. Weights
    that the rows say nothing about stay: all weights of a column without gradient, and those of an input that was zero
    in every row.

    Args:
        params: A model, binary layers, parameters, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights; None takes one from depth and `steps`, relative to their initial range.
        projection: "ridge" or "spins"; None takes "spins" where a solver or a scale is given, and "ridge" elsewhere.
        solver: Of the spins: the name of a solver or a solver object; see `qpsbgd.solvers`. None takes `TRAINING`.
        scale: Of the spins: κ of `binary_map`, or "literal" for the paper's equation as printed; None takes 1.
        momentum: β. Zero is the paper's method.
        clip: Bound of the latent weights: a number, "range" for twice their initial range, None to leave them free, as
            the paper does. "auto" is "range" where no lr is given, and 1 elsewhere.
        steps: Steps of the whole training: the learning rate then falls to zero over them, by a cosine.
        relative: Whether `lr` is in units of each layer's initial range; so by default only where no lr is given.
        ridge: δ. The larger, the nearer G is to the gradient; "auto" is 10, less with few rows.
        memory: Of the ridge: how much of Q̄ is kept when new rows come in.
        refresh: Of the ridge: steps for which Q̄ and its factorisation serve.
        block: Layers with more inputs are cut into blocks of at most so many, each a problem of its own; None for no
            limit. It bounds the memory of Q̄ by `block` numbers per input.
        rows: Rows that a layer records of one pass; of more, such as a convolution's patches, evenly spaced ones are
            taken. None records all of them.
        real: Also train everything else in the model: options of a torch optimiser, `dict(lr=1e-3)`, its class as
            `kind` (AdamW by default), `max_norm` to clip the gradient of these parameters, and `steps` (by default
            those of this optimiser). None leaves them to another optimiser; parameters that are given one by one, as
            `model.parameters()`, are always trained.

    Attributes:
        solver: The solver of the spins; another one may be set between two steps.
        observers: Called with every layer of a step and the figures of its projection; a `Monitor` is one.
    """

    observers: list[Observer]

    _tapes: dict[BinaryLayer, TrainingTape | InputTape]
    _inverses: dict[BinaryLayer, Tensor]
    _solutions: list[Solution]
    _replayed: GraphedStep | None
    _graphs: GraphCache | None
    _steps: int
    _heard: set[BinaryLayer]
    _reported: set[BinaryLayer]

    # GradScaler then hands over its scale instead of dividing .grad, which spins do not use.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Layers,
        lr: float | None = None,
        projection: Projection | None = None,
        solver: str | Solver | None = None,
        scale: Scale | None = None,
        momentum: float = 0.9,
        *,
        clip: float | Literal["auto", "range"] | None = "auto",
        steps: int | None = None,
        relative: bool | None = None,
        ridge: Penalty = "auto",
        memory: float = 0.9,
        refresh: int = 20,
        block: int | None = 1024,
        rows: int | None = 2048,
        real: Mapping[str, Any] | None = None,
    ) -> None:
        if projection is None:
            projection = "ridge" if solver is None and scale is None else "spins"
        elif projection == "ridge" and (solver is not None or scale is not None):
            raise ValueError('solver and scale belong to projection="spins"; leave them out, or take that projection')
        self.solver = make_solver(TRAINING if solver is None else solver)
        self._tapes, self._inverses = {}, {}
        self._forget_runs()
        options = {
            "lr": lr,
            "projection": projection,
            "scale": 1.0 if scale is None else scale,
            "momentum": momentum,
            "clip": ("range" if lr is None else 1.0) if clip == "auto" else clip,
            "steps": steps,
            "relative": relative,
            "ridge": ridge,
            "memory": memory,
            "refresh": refresh,
            "block": block,
            "rows": rows,
        }
        super().__init__(params, options, real)

    @property
    def solutions(self) -> list[Solution]:
        """The solver's answers of the last step, one per updated layer, in the order of the layers."""
        if self._replayed is not None:  # copied now: the graph's next step overwrites them
            self._solutions, self._replayed = self._replayed.solutions(), None
        return self._solutions

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Project every layer's gradients and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after all answers have come, so a step whose solver failed or was
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
            ridges = [(group, layer) for group, layer in self._members("ridge") if self._has_gradient(layer)]
            self._check_heard({part.layer for part in parts} | {layer for _, layer in ridges})
            self._check_gradients([layer for _, layer in ridges])
            # In an autocast block the QUBOs would be computed in half precision.
            with torch.autocast(next(iter(self._layers)).device.type, enabled=False):
                advances = [self._advance(group, layer) for group, layer in ridges]
                if parts and (self.observers or not self._graphed(parts)):
                    self._launch(parts)
                for (group, layer), advance in zip(ridges, advances, strict=True):
                    self._finish(group, layer, advance)
            self._step_real()
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._forget()
        self._count_step()
        return loss

    def _advance(self, group: dict[str, Any], layer: BinaryLayer) -> ridge.Advance:
        """A layer's step by the ridge; nothing is changed yet."""
        state, grad = self.state.get(layer.weight, {}), layer.weight.grad
        assert grad is not None
        begun = now(grad.device) if self.observers else 0.0
        self._check_gradient_kept(layer, state, grad)
        # A GradScaler leaves its factor here, unless unscale_() has taken it out of the gradient.
        scale = getattr(self, "grad_scale", None)
        try:
            advance = ridge.advance(
                state,
                grad if scale is None else grad / scale,
                self._input_tape(layer).rows(),
                inverses=self._inverses.get(layer),
                blocks=Blocks.of(layer, group["block"]),
                options=group,
            )
        except ValueError as error:
            raise ValueError(f"{layer}: {error}") from error
        if self.observers:
            self._tell(layer, {"penalty": advance.state["penalty"], "seconds": now(grad.device) - begun})
        return advance

    def _check_gradient_kept(self, layer: BinaryLayer, state: dict[str, Any], grad: Tensor) -> None:
        """Raise RuntimeError where the mean gradient does not fit the new one."""
        if "gradient" not in state:
            return
        kept, dtype = state["gradient"], torch.promote_types(grad.dtype, torch.float32)
        found, wanted = (kept.dtype, kept.device, tuple(kept.shape)), (dtype, grad.device, tuple(grad.shape))
        if found != wanted:
            raise RuntimeError(
                f"the momentum of {layer} is {found}, but its gradient {wanted}; convert or move the model before the "
                "optimiser is made, load a state of the same model, or make a new optimiser"
            )

    def _has_gradient(self, layer: BinaryLayer) -> bool:
        """Whether the ridge can move a layer: it has a gradient, is in training, and its inputs are known."""
        known = "gram" in self.state.get(layer.weight, {}) or self._input_tape(layer).rows() is not None
        return layer.weight.grad is not None and layer.training and known

    def _finish(self, group: dict[str, Any], layer: BinaryLayer, advance: ridge.Advance) -> None:
        """Move the layer's weights and keep its state."""
        step = self._rate(group, layer) * normalized(advance.direction)
        layer.weight.copy_(clipped(layer.weight - step, self._clip(group, layer)))
        self.state[layer.weight].update(advance.state)
        self._inverses[layer] = advance.inverses
        tape = self._input_tape(layer)
        tape.clear()
        tape.wanted = ridge.due(advance.state["step"], group["refresh"])

    def _input_tape(self, layer: BinaryLayer) -> InputTape:
        tape = self._tapes[layer]
        assert isinstance(tape, InputTape)
        return tape

    def _launch(self, parts: Sequence[LayerStep]) -> None:
        """The step of the spins as the class describes it."""
        fresh = [_family(part) for part in parts]
        families = [averaged(part.mean, new, part.rate) for part, new in zip(parts, fresh, strict=True)]
        answer = self._observed if self.observers else self._solve
        solutions = answer(parts, families)
        moves: dict[BinaryLayer, list[Tensor]] = {}
        for part, new, family, solution in zip(parts, fresh, families, solutions, strict=True):
            options = part.options
            weight = moved(part.weight, new, family, solution.spins, lr=options.lr, clip=options.clip)
            moves.setdefault(part.layer, []).append(weight)
        for part, family, solution in zip(parts, families, solutions, strict=True):
            if part.index == 0:
                part.layer.weight.copy_(part.blocks.joined(torch.stack(moves[part.layer]), part.layer.weight))
            self._keep(part, family, solution.spins)
        self._solutions, self._replayed = solutions, None

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
        for part, mean, start in zip(parts, graph.means, graph.starts, strict=True):
            self._keep(part, mean, start)
        self._replayed = graph
        return True

    def _keep(self, part: LayerStep, family: QuboFamily, spins: Tensor | None) -> None:
        """Make `family` the block's mean, in the existing tensors, because a CUDA graph keeps their addresses."""
        if not part.options.momentum:
            return
        state, count = self.state[part.layer.weight], part.blocks.count
        kept = {name: getattr(family, name) for name in _FAMILY}
        if spins is not None and starts_warm(self.solver):
            kept[_SPINS] = spins
        for name, value in kept.items():
            if count > 1:
                state.setdefault(name, value.new_zeros(count, *value.shape))[part.index] = value
            elif name not in state:
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
        blocks = [Blocks.of(layer, group["block"]) for group, layer in self._members("spins")]
        shapes = [(block.width, block.outputs) for block in blocks for _ in range(block.count)]
        cost: Estimate = self.solver.estimate(shapes)
        return cost * steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._forget()

    def _members(self, projection: Projection) -> Iterator[tuple[dict[str, Any], BinaryLayer]]:
        """Groups and layers of a projection."""
        for group in self.binary_groups:
            if group["projection"] != projection:
                continue
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.weight is not weight:
                    raise RuntimeError(f"the weight of {layer} was replaced by a new parameter; make a new optimiser")
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser that was made later; step that one, or make a new one"
                    )
                yield group, layer

    def _clip(self, group: dict[str, Any], layer: BinaryLayer) -> float | None:
        clip: float | None = _RANGES * layer.initial_bound if group["clip"] == "range" else group["clip"]
        return clip

    def _parts(self) -> list[LayerStep]:
        """What the layers of the spins recorded, with their options and means."""
        parts = []
        for group, layer in self._members("spins"):
            options = LayerOptions.of(group, lr=self._rate(group, layer), clip=self._clip(group, layer))
            record = self._tapes[layer].read()
            if record is not None:
                if options.scale == "literal":
                    record = LayerRecord(record.inputs, record.output_grads / self._grad_scale())
                parts += self._blocks(layer, record, options, Blocks.of(layer, group["block"]))
        return parts

    def _check_heard(self, heard: set[BinaryLayer]) -> None:
        if not heard and not any(p.grad is not None for group in self.real_groups for p in group["params"]):
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes; under torch.func nothing "
                "is recorded)"
            )
        self._report_silent_layers(heard)

    def _blocks(
        self, layer: BinaryLayer, record: LayerRecord, options: LayerOptions, blocks: Blocks
    ) -> list[LayerStep]:
        """The shares of a layer's blocks in the step."""
        rows, grads = blocks.rows(record.inputs), blocks.columns(record.output_grads)
        state = self.state.get(layer.weight, {})
        known = options.momentum and "step" in state
        if known:
            self._check_mean(layer, state, rows, grads)
        parts = []
        for index in range(blocks.count):
            mean, start = None, None
            if known:
                own = {
                    name: state[name] if blocks.count == 1 else state[name][index] for name in _KEPT if name in state
                }
                mean = QuboFamily.trusted(*(own[name] for name in _FAMILY))
                start = own.get(_SPINS) if starts_warm(self.solver) else None
            part = LayerRecord(rows[index], grads[index])
            count = state["step"] if known else 0
            parts.append(LayerStep(layer, part, options, mean, start, count, blocks, index))
        return parts

    def _check_mean(self, layer: BinaryLayer, state: dict[str, Any], rows: Tensor, grads: Tensor) -> None:
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
            warnings.warn(f"{layer} is not trained: it {reason}", stacklevel=callers_level())

    def _observed(self, parts: Sequence[LayerStep], families: list[QuboFamily]) -> list[Solution]:
        """`_solve`, layer by layer where the solver does so anyway, with what the observers are told."""
        layers = [list(own) for _, own in groupby(range(len(parts)), lambda index: parts[index].layer)]
        together = not starts_warm(self.solver) and type(self.solver).solve_all is not Solver.solve_all
        solutions: list[Solution] = []
        seconds: list[float] = []
        for call in [list(range(len(parts)))] if together else layers:
            begun = now(families[call[0]].linear.device)
            solutions += self._solve([parts[index] for index in call], [families[index] for index in call])
            seconds += [now(families[call[-1]].linear.device) - begun] * len(call)
        for own in layers:
            first = parts[own[0]]
            figures = projection(
                [families[index] for index in own],
                [solutions[index] for index in own],
                blocks=first.blocks,
                like=first.layer.weight,
            )
            self._tell(first.layer, {**figures, "seconds": seconds[own[0]]})
        return solutions

    def _tell(self, layer: BinaryLayer, figures: dict[str, float]) -> None:
        for observer in self.observers:
            observer(layer, figures)

    def _solve(self, parts: Sequence[LayerStep], families: list[QuboFamily]) -> list[Solution]:
        if starts_warm(self.solver):
            pairs = [(family, part.start) for part, family in zip(parts, families, strict=True)]
            solutions = [self.solver.solve(f) if s is None else self.solver.improved(f, s.clone()) for f, s in pairs]
        else:
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
            if isinstance(tape, TrainingTape):  # the ridge's rows often come before zero_grad and serve several steps
                tape.clear()

    def _forget_runs(self) -> None:
        """Reset what belongs to this object's own steps and is neither copied nor saved."""
        self._solutions, self._replayed, self._graphs = [], None, None
        self._steps, self._heard, self._reported = 0, set(), set()
        self.observers = []

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)
        group = next(g for g in self.binary_groups if any(weight is layer.weight for weight in g["params"]))
        layer.tape = self._tapes[layer] = (
            TrainingTape(layer.weight, group["rows"]) if group["projection"] == "spins" else InputTape(group["rows"])
        )

    def _tell_tapes(self) -> None:
        """Tell the ridge's tapes whether the next step renews Q̄."""
        for group, layer in self._members("ridge"):
            step = self.state.get(layer.weight, {}).get("step", 0)
            self._input_tape(layer).wanted = ridge.due(step, group["refresh"])

    def _check_options(self, options: dict[str, Any]) -> None:
        super()._check_options(options)
        if options["projection"] not in get_args(Projection):
            raise ValueError(f'projection must be "ridge" or "spins", got {options["projection"]!r}')
        check_range(options, "momentum", least=0, below=1)
        check_scale(options["scale"])
        if options["ridge"] != "auto":
            check_range(options, "ridge", above=0)
        check_range(options, "memory", least=0, below=1)
        check_whole(options, "refresh", least=1)
        for name in ("block", "rows"):
            if options[name] is not None:
                check_whole(options, name, least=1)

    def _rate_factor(self, options: dict[str, Any]) -> float:
        return _RATE_FACTOR

    def state_dict(self) -> dict[str, Any]:
        """Groups, momentum and the solver's own state; records of passes not yet stepped are not part of it."""
        state: dict[str, Any] = super().state_dict()
        if solver_state := self.solver.state_dict():
            state["solver"] = solver_state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        self._check_state(state_dict, {*_KEPT, *ridge.STATE})
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.solver.load_state_dict(state_dict.get("solver", {}))
        self._inverses = {}
        for layer in self._layers.values():  # their projection may be another now
            self._adopt(layer)
        # torch casts state to the parameter's type, but QUBOs of half-precision layers stay in single precision.
        weights = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            weight = weights[index]
            for name in saved.keys() & {*_KEPT, "gradient", "gram"}:
                self.state[weight][name] = saved[name].clone().to(weight.device)
        self._tell_tapes()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "solver": self.solver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_layers" in state:
            self._tapes, self._inverses = {}, {}
            self._forget_runs()
        copied = "_layers" in state
        super().__setstate__(state)
        if copied:
            self._tell_tapes()

    def __repr__(self) -> str:
        solver = f"solver: {self.solver}\n" if any(True for _ in self._members("spins")) else ""
        return f"{super().__repr__().removesuffix(')')}{solver})"


def starts_warm(solver: Solver) -> TypeGuard[Descent]:
    """Whether a solver begins with the spins of the last step."""
    return type(solver) is Descent and solver.warm


def _family(part: LayerStep) -> QuboFamily:
    try:
        return binary_map(part.record.inputs, part.record.output_grads, gain=part.layer.gain, scale=part.options.scale)
    except ValueError as error:
        raise ValueError(f"{part.layer}: {error}") from error


def _check_single_process() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise RuntimeError(
            f"QPSBGD trains in one process, but torch.distributed has {distributed.get_world_size()} ranks: each would "
            "solve the QUBOs of its own rows, and their weights would drift apart; train in one process, or use "
            "BinaryConnect, whose gradients DistributedDataParallel averages"
        )
