"""QP-SBGD: step against the vector that explains a layer's output gradients best, over ±1 or over the reals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import InputTape, LayerRecord, TrainingTape
from qpsbgd.openmp import guard_fork
from qpsbgd.optim import ridge, spins_steps
from qpsbgd.optim.blocks import Blocks
from qpsbgd.optim.layerwise import LayerwiseOptimizer, release
from qpsbgd.optim.members import Layers
from qpsbgd.optim.ranks import Ranks
from qpsbgd.optim.ridge import Penalty
from qpsbgd.optim.ridge_steps import Member, RidgeSteps, fresh_moments, tell_tape
from qpsbgd.optim.silent_layers import SilentLayers
from qpsbgd.optim.spins_steps import SpinsSteps, parts_of, starts_warm
from qpsbgd.optim.step import LayerOptions, LayerStep, Projection, check_step_options, clip_of
from qpsbgd.optim.step_figures import Observer
from qpsbgd.optim.together import agreed, completed
from qpsbgd.qubo import Solution
from qpsbgd.qubo.binary_map import Scale
from qpsbgd.solvers import Solver, make_solver
from qpsbgd.solvers.search.descent import Descent

if TYPE_CHECKING:
    from qpsbgd.solvers.annealer.budget import Estimate


_RATE_FACTOR = 2.8
TRAINING = Descent(warm=True)
"""The solver of training: a local minimum near the last step's is enough, and cheap."""


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
        rows: Rows that a layer records of one pass, of all ranks together; of more, such as a convolution's patches,
            evenly spaced ones are taken. None records all of them.
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
    _spins: SpinsSteps
    _ridge: RidgeSteps
    _silent: SilentLayers
    _ranks: Ranks

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
        self._tapes = {}
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
        return self._spins.solutions

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Project every layer's gradients and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after all answers have come, so a step whose solver failed or was
        interrupted can be repeated.

        Raises:
            RuntimeError: No layer has recorded a backward pass since the last step; or, of several processes, another
                one failed or is not like this one (docs/processes.md).
            ValueError: A layer saw NaN or infinite values.
        """
        loss = self._run(closure)
        try:
            guard_fork()
            work = self._work() if self._ranks.size == 1 else agreed(self._ranks, self, self._work)
            if work is not None:
                # In an autocast block the QUBOs would be computed in half precision.
                with torch.autocast(next(iter(self._layers)).device.type, enabled=False):
                    self._move(*work)
                self._step_real()
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._forget()
        if work is not None:
            self._count_step()
        return loss

    def _work(self) -> tuple[dict[BinaryLayer, LayerRecord | None], list[Member]] | None:
        """What the spins' layers recorded, and the ridge's layers with a gradient; None if a GradScaler skips it."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return None
        records = {layer: self._record(group, layer) for group, layer in self._members("spins")}
        members = [
            (g, layer) for g, layer in self._members("ridge") if layer.weight.grad is not None and layer.training
        ]
        self._check_gradients([layer for _, layer in members])
        return records, members

    def _move(self, records: dict[BinaryLayer, LayerRecord | None], members: list[Member]) -> None:
        """Find all answers, then change weights and momentum."""
        fresh = fresh_moments(members, states=self.state, ranks=self._ranks)
        ridges = [(g, layer) for g, layer in members if layer in fresh or "gram" in self._state_of(layer)]
        parts = self._parts(records if self._ranks.size == 1 else completed(records, self._ranks))
        self._check_heard({part.layer for part in parts} | {layer for _, layer in ridges})
        tell = self._tell if self.observers else None
        # A GradScaler leaves its factor here, unless unscale_() has taken it out of the gradient.
        scale = getattr(self, "grad_scale", None)
        advances = [
            self._ridge.advance(
                layer, fresh.get(layer), state=self._state_of(layer), options=group, loss_scale=scale, tell=tell
            )
            for group, layer in ridges
        ]
        if parts:
            self._spins.step(parts, self.solver, states=self.state, tell=tell, ranks=self._ranks)
        for (group, layer), advance in zip(ridges, advances, strict=True):
            self._finish(group, layer, advance)

    def _finish(self, group: dict[str, Any], layer: BinaryLayer, advance: ridge.Advance) -> None:
        state, lr = self.state[layer.weight], self._rate(group, layer)
        self._ridge.finish(layer, advance, state=state, lr=lr, clip=clip_of(group, layer))
        tell_tape(layer, state, group["refresh"])

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

    def _state_of(self, layer: BinaryLayer) -> dict[str, Any]:
        """What is kept of a layer; empty, and not created, before its first step."""
        state: dict[str, Any] = self.state.get(layer.weight, {})
        return state

    def _record(self, group: dict[str, Any], layer: BinaryLayer) -> LayerRecord | None:
        """What a layer recorded since the last step, of the loss that all ranks minimise together."""
        record = self._tapes[layer].read()
        if record is None or group["scale"] != "literal":  # other scales do not depend on the size of the gradient
            return record
        # DistributedDataParallel minimises the mean of the ranks' losses.
        return LayerRecord(record.inputs, record.output_grads / (self._ranks.size * self._grad_scale()))

    def _parts(self, records: dict[BinaryLayer, LayerRecord | None]) -> list[LayerStep]:
        """The shares of the spins' layers in a step, with their options and means."""
        parts = []
        for group, layer in self._members("spins"):
            if (record := records[layer]) is not None:
                parts += parts_of(
                    layer,
                    record,
                    options=LayerOptions.of(group, lr=self._rate(group, layer), layer=layer),
                    blocks=Blocks.of(layer, group["block"]),
                    state=self._state_of(layer),
                    warm=starts_warm(self.solver),
                )
        return parts

    def _check_heard(self, heard: set[BinaryLayer]) -> None:
        if not heard and not any(p.grad is not None for group in self.real_groups for p in group["params"]):
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes; under torch.func nothing "
                "is recorded)"
            )
        self._silent.report(self._layers.values(), heard)

    def _tell(self, layer: BinaryLayer, figures: dict[str, float]) -> None:
        for observer in self.observers:
            observer(layer, figures)

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
        self._spins, self._ridge, self._silent, self._ranks = SpinsSteps(), RidgeSteps(), SilentLayers(), Ranks()
        self.observers = []

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)
        group = next(g for g in self.binary_groups if any(weight is layer.weight for weight in g["params"]))
        rows = group["rows"] if group["rows"] is None else -(-group["rows"] // self._ranks.size)  # of all ranks
        layer.tape = self._tapes[layer] = (
            TrainingTape(layer.weight, rows) if group["projection"] == "spins" else InputTape(rows)
        )

    def _tell_tapes(self) -> None:
        """Tell the ridge's tapes whether the next step renews Q̄."""
        for group, layer in self._members("ridge"):
            tell_tape(layer, self._state_of(layer), group["refresh"])

    def _check_options(self, options: dict[str, Any]) -> None:
        super()._check_options(options)
        check_step_options(options)

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
        self._check_state(state_dict, {*spins_steps.STATE, *ridge.STATE})
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.solver.load_state_dict(state_dict.get("solver", {}))
        self._ridge = RidgeSteps()
        for layer in self._layers.values():  # their projection may be another now
            self._adopt(layer)
        # torch casts state to the parameter's type, but QUBOs of half-precision layers stay in single precision.
        weights = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            weight = weights[index]
            for name in saved.keys() & {*spins_steps.STATE, "gradient", "gram"}:
                self.state[weight][name] = saved[name].clone().to(weight.device)
        self._tell_tapes()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "solver": self.solver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_layers" in state:
            self._tapes = {}
            self._forget_runs()
        copied = "_layers" in state
        super().__setstate__(state)
        if copied:
            self._tell_tapes()

    def __repr__(self) -> str:
        solver = f"solver: {self.solver}\n" if any(True for _ in self._members("spins")) else ""
        return f"{super().__repr__().removesuffix(')')}{solver})"
