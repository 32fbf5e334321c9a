"""QP-SBGD: steps along the least-squares projection of each layer's gradient, over ±1 or over the reals."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.distributed.algorithms.join import Joinable, JoinHook

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.contexts import temporary_attributes
from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.openmp import guard_fork
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.optim.cuda_graph import GraphedSteps
from qpsbgd.optim.functional import LayerUpdate, qpsbgd
from qpsbgd.optim.gradient_check import DeferredFiniteCheck
from qpsbgd.optim.options import ProjectionRules, resolve_defaults, usual_clip
from qpsbgd.optim.parameters import Layers, param_groups
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.recommend import RATE, Network, momentum_of
from qpsbgd.parallel.distributed_solver import with_distributed_solver
from qpsbgd.parallel.ranks import Record, gather_records
from qpsbgd.parallel.shards import distribute_saved, is_sharded, local, saved_tensors
from qpsbgd.projections import PROJECTIONS, Direction, LayerInputs, LayerState, Projection, make_projection
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.annealers.budget import Estimate

_RANGES = 2.0  # clip="range": the bound of the latent weights in initial ranges


class QPSBGD(BinaryOptimizer, Joinable):
    """Quantum projected stochastic binary-gradient descent (Alg. 1).

        Ω ← clip(Ω − lr · G, ±clip),   G the layer's projection: "ridge", "polar", "spins" or "printed"

    "spins" is the paper's projection onto ±1, by annealers and QUBO solvers; "ridge" is the same least-squares problem
    over the reals; "polar" makes all singular values of the mean gradient equal; "printed" is the paper's algorithm to
    the letter. `qpsbgd.projections` has their formulas. Use it like any optimiser: `zero_grad`, `backward`, `step`.

    Args:
        params: A model, binary layers, parameters, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights; None takes that of `recommend`, relative to their initial range.
        projection: "ridge", "polar", "spins", "printed", or an object with its own options: `Spins(bits=2)`. None takes
            that of `recommend`.
        solver: Short for `Spins(solver=…)`; the projection is then "spins" unless given.
        momentum: β of the mean gradient; None takes the projection's, 0.9, or 0 for "printed", and less in short runs:
            0.8 in up to 750 steps.
        clip: Bound of the latent weights: a number, "range" for twice their initial range, None to leave them free, as
            the paper does. "auto" is "range" where the rate is relative, and 1 elsewhere.
        steps: Total number of training steps: after the warm-up the learning rate falls to zero by a cosine.
        warmup: Fraction of `steps` over which the rate rises; None is 0.1 for models with norms, and 0 for others.
        relative: Whether `lr` is in units of each layer's initial range; by default only if no `lr` is given.
        real: Also train everything else in the model: True, or options of a torch optimiser, `dict(lr=1e-2)`, its
            class as `kind` (AdamW by default, at a rate of 0.003; where there are norms, they and biases have 0.01 to
            0.03, and so have learned scales, less in deep networks without norms; a given `lr` is for all), `max_norm`
            to clip the gradient of these parameters, `vector_factor` on the rate of norms and biases, `scale_factor` on
            that of learned scales, and `steps` (by default those of this optimiser). None leaves them to another
            optimiser, and warns if there is none; False does not warn. Parameters passed one by one, as by
            `model.parameters()`, are always trained.

    Attributes:
        observers: Called with every layer of a step and the figures of its projection; a `Monitor` is one.
    """

    _rules: ProjectionRules
    _solutions: list[Callable[[], list[Solution]]]
    _derived: dict[BinaryLayer, dict[str, Any]]  # what follows from the states
    _has_batch: bool = True  # False on a rank that has ended before others, inside Join

    def __init__(
        self,
        params: Layers,
        lr: float | None = None,
        projection: str | Projection | None = None,
        *,
        solver: str | Solver | None = None,
        momentum: float | None = None,
        clip: float | Literal["auto", "range"] | None = "auto",
        steps: int | None = None,
        warmup: float | None = None,
        relative: bool | None = None,
        real: Real = None,
    ) -> None:
        groups = param_groups(params)
        network = Network.of(groups)
        recommended = network.recommendation(steps)
        chosen = _chosen_projection(projection, solver, recommended.projection)
        options = {
            "lr": lr,
            "projection": chosen,
            "momentum": momentum_of(chosen, steps) if momentum is None else momentum,
            "clip": usual_clip(relative=lr is None or relative is True) if clip == "auto" else clip,
            "steps": steps,
            "warmup": warmup,
            "relative": relative,
        }
        arguments = {"lr": lr, "projection": projection or solver, "momentum": momentum, "warmup": warmup}
        arguments |= {"relative": relative, "clip": None if clip == "auto" else "given"}
        given = frozenset(name for name, value in arguments.items() if value is not None)
        rules = ProjectionRules.of(options, network, type(self).__name__, recommended=recommended, given=given)
        super().__init__(groups, resolve_defaults(options, network, rules, rate_factor=RATE), real, rules)

    def __repr__(self) -> str:
        unused = self._rules.given | {"scale"}
        if not self._real.parts or {"lr", "kind"} & set(self._real.options or ()):
            unused |= {"real_lr", "vector_lr", "scale_lr"}
        recommended = self._rules.recommended
        reasons = {name: reason for name, reason in recommended.reasons.items() if name not in unused}
        lines = [f"    {line}" for line in str(replace(recommended, reasons=reasons)).splitlines()]
        return "\n".join([super().__repr__(), "What was not given is recommended for the network:", *lines])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Project every layer's gradients and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after all directions are known and the real parameters have made their
        step, so a step whose solver or real optimiser failed, or that was interrupted, can be repeated.

        Raises:
            RuntimeError: No layer has recorded a backward pass since the last step; or, with several processes, another
                one failed (docs/integrations.md).
            ValueError: A layer's inputs or gradients hold NaN or infinite values; on a GPU this is reported one step
                later, and the faulty step has changed nothing.
        """
        loss = self._run(closure)
        layers = list(self._layers.values())
        moved: set[BinaryLayer] = set()
        try:
            guard_fork()
            if self._ranks.size > 1:
                self._take_part()
            records = self._ranks.synchronized(self._records)
            if records is not None:
                # In an autocast block the products would be computed in half precision.
                with torch.autocast(layers[0].weight.device.type, enabled=False):
                    moved = self._move(records)
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._recorder.clear()
        if records is not None:
            self._finish_step(*self._recorder.silent(moved))
        return loss

    def _take_part(self) -> None:
        """Inside Join, make sure that ranks without batches make the steps of the others."""
        if not self._join_config.enable and not self._recorder.inside_join:
            return
        if not self._join_config.enable or self._join_config.is_first_joinable:
            raise RuntimeError(
                "Join must be given the model and then its optimiser, whose steps need all ranks: "
                "with Join([model, optimizer])"
            )
        params = [p for group in self.param_groups for p in group["params"]]
        self._ranks.share_gradients(params, has_batch=self._has_batch)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank without batches does in each step of the others, for torch's `Join`."""
        return _StepAlong(self)

    @property
    def join_device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self._layers)).device

    @property
    def join_process_group(self) -> Any:
        """All ranks."""
        return dist.group.WORLD

    def _records(self) -> dict[BinaryLayer, Record] | None:
        """The records of the layers with a gradient; None if a GradScaler skips this step."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return None
        members = [(g, layer) for g, layer in self._members() if layer.weight.grad is not None and layer.training]
        records = {layer: self._recorder.read(layer) for _, layer in members}
        moments = {layer: record.sums for layer, record in records.items() if isinstance(record, LayerMoments)}
        later = not self.observers and not any(self._asks_host(group, layer) for group, layer in members)
        self._check_gradients(records, moments, later=later)
        return records

    def _asks_host(self, group: dict[str, Any], layer: BinaryLayer) -> bool:
        """Whether a layer's step on a GPU may wait for it; the first one does, so that it can still be refused."""
        grad: Any = layer.weight.grad
        projection: Projection = group["projection"]
        if not projection.capturable(grad, self._state_of(layer, projection)):
            return True
        return self._recorder.records_now(layer) and not projection.asynchronous(grad)

    @_disable_dynamo  # torch loses what a dataclass is given in a step that it compiles in parts
    def _move(self, records: Mapping[BinaryLayer, Record]) -> set[BinaryLayer]:
        """Make the step with the rows of all processes; returns the layers that it moved."""
        members = [(group, layer) for group, layer in self._members() if layer in records]
        if self._ranks.size > 1:
            needed = {layer: group["projection"] for group, layer in members if self._recorder.records_now(layer)}
            records = gather_records(records, needed, self._ranks)
        updates = self._updates(members, records)
        real_alone = not members and any(p.grad is not None for group in self.real_groups for p in group["params"])
        if not updates and not real_alone:
            raise RuntimeError(
                "step() found no recorded pass: run the model that this optimiser was made for, not a copy of it, in "
                "training mode with gradients on, and call loss.backward() before every step (zero_grad and step "
                "forget earlier passes; under torch.func nothing is recorded)"
            )
        self._keep(updates, self._take_step(updates))
        return {update.inputs.layer for update in updates}

    def _take_step(self, updates: Sequence[LayerUpdate]) -> list[Direction]:
        """Make the step: on a GPU by CUDA graphs, unless an observer wants to know how long projections take."""
        if self.observers:
            clock = partial(_now, next(iter(self._layers)).device)
            return qpsbgd(updates, clock, before=self._step_real)
        step = self._graphs.step if any(update.weight.is_cuda for update in updates) else qpsbgd
        return step(updates, skip=self._skip, before=self._step_real)

    def _updates(
        self, members: Sequence[tuple[dict[str, Any], BinaryLayer]], records: Mapping[BinaryLayer, Record]
    ) -> list[LayerUpdate]:
        """The updates of the layers that can take part in this step."""
        projections = {(id(own), sharded): own for own in self._projections() for sharded in (False, True)}
        if self._ranks.size > 1:
            projections = {
                key: with_distributed_solver(projection, self._ranks, sharded=key[1])
                for key, projection in projections.items()
            }
        updates = [
            LayerUpdate(
                local(layer.weight.detach()),
                self._inputs(group, layer, records[layer]),
                projections[id(group["projection"]), is_sharded(layer.weight)],
                1.0 if group["projection"].capabilities.takes_rate else self._rate(group, layer),
                _RANGES * layer.initial_bound if group["clip"] == "range" else group["clip"],
            )
            for group, layer in members
        ]
        return [update for update in updates if update.projection.ready(update.inputs)]

    def _keep(self, updates: Sequence[LayerUpdate], directions: Sequence[Direction]) -> None:
        """Keep states and solutions, let layers record for the next step, and tell the observers."""
        self._solutions = [direction.solutions for direction in directions]  # not all that directions hold
        for update, direction in zip(updates, directions, strict=True):
            layer, state = update.inputs.layer, update.inputs.state
            if saved := state.saved():
                self.state[layer.weight], self._derived[layer] = saved, state.derived()
            self._recorder.set_records(layer, update.projection.records_at(state.step))
            for observer in self.observers:
                observer(layer, {**direction.figures(), "seconds": direction.seconds})

    def _inputs(self, group: dict[str, Any], layer: BinaryLayer, record: Record) -> LayerInputs:
        assert layer.weight.grad is not None
        grad, shards = local(layer.weight.grad), self._ranks if is_sharded(layer.weight) else None
        scale = getattr(self, "grad_scale", None)  # a GradScaler's factor that is still in the gradients
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
        grad = grad if scale is None else grad / scale
        if record is not None and not (record.rows if isinstance(record, LayerMoments) else len(record.inputs)):
            raise ValueError(f"{layer}: the batch is empty: a step needs at least one row; leave out such batches")
        if isinstance(record, LayerRecord) and group["projection"].absolute:
            if scale is None and hasattr(self, "found_inf"):
                raise RuntimeError('scale="literal" does not work after GradScaler.unscale_(); leave that call out')
            # DistributedDataParallel minimises the mean of the ranks' losses.
            factor = self._ranks.size * (1.0 if scale is None else scale)
            record = LayerRecord(record.inputs, record.output_grads / factor)
        state = self._state_of(layer, group["projection"])
        return LayerInputs(layer, grad, record, float(group["momentum"]), state, shards, self._rate(group, layer))

    def _state_of(self, layer: BinaryLayer, projection: Projection) -> LayerState:
        """What the projection kept of a layer after the last step."""
        return projection.capabilities.state.restored(self.state.get(layer.weight, {}), self._derived.get(layer, {}))

    @property
    def solver(self) -> Solver:
        """The solver of the spins; another one may be set between two steps."""
        for projection in self._projections():
            if projection.solver is not None:
                return projection.solver
        names = " and ".join(f'"{projection.name}"' for projection in self._projections())
        raise AttributeError(f'the projection {names} has no solver; see projection="spins"')

    @solver.setter
    def solver(self, solver: str | Solver) -> None:
        for projection in self._projections():
            if projection.solver is not None:
                new = projection.with_solver(make_solver(solver))
                for group in (self.defaults, *self.binary_groups):
                    group["projection"] = new if group["projection"] is projection else group["projection"]

    @property
    def solutions(self) -> list[Solution]:
        """The solver's answers of the last step, one per updated layer and block, in the order of the layers."""
        return [solution for solutions in self._solutions for solution in solutions()]

    def estimate(self, steps: int = 1) -> Estimate:
        """The cost of that many steps on the solver's annealer: submissions and QPU seconds; nothing is sent.

        Raises:
            TypeError: The solver uses no annealer.
        """
        costs: list[Estimate] = []
        for projection in self._projections():
            solver: Any = projection.solver or self.solver
            if not hasattr(solver, "estimate"):
                raise TypeError(f"{solver} uses no annealer, so its steps cost no QPU time; see the solver 'dwave'")
            layers = [layer for group, layer in self._members() if group["projection"] is projection]
            shapes = [shape for layer in layers if projection.vectors for shape in projection.family_shapes(layer)]
            if shapes:
                costs.append(solver.estimate(shapes) * (projection.vectors * steps))
        return sum(costs[1:], costs[0])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def _members(self) -> Iterator[tuple[dict[str, Any], BinaryLayer]]:
        self._check_in_place()
        for group in self.binary_groups:
            for weight in group["params"]:
                layer = self._layers[weight]
                self._recorder.check_attached(layer)
                yield group, layer

    def _projections(self) -> list[Projection]:
        """Every projection once, in the order of the groups."""
        return list({id(group["projection"]): group["projection"] for group in self.binary_groups}.values())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler passes its scale on instead of dividing `.grad`, because more depends on it."""
        return any(projection.absolute for projection in self._projections())

    def _reset_transient_state(self) -> None:
        super()._reset_transient_state()
        Joinable.__init__(self)
        self._derived, self._solutions = {}, []
        self._graphs = GraphedSteps()

    def state_dict(self) -> dict[str, Any]:
        """Groups, momentum and the solvers' own states; records of passes not yet stepped are not part of it."""
        state = super().state_dict()
        distribute_saved(state, self.param_groups)
        texts = [
            {"projection": group["projection"].describe()} if "projection" in group else {}
            for group in self.param_groups
        ]
        state["param_groups"] = [{**entry, **text} for entry, text in zip(state["param_groups"], texts, strict=True)]
        solvers = [
            {} if projection.solver is None else projection.solver.state_dict() for projection in self._projections()
        ]
        return {**state, "solvers": solvers} if any(solvers) else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state, as if training had never stopped; one that does not fit changes nothing."""
        # Entries of other projections are refused by name.
        kinds = [type(projection) for projection in self._projections()]
        known = {name for kind in (*kinds, *PROJECTIONS.values()) for name in kind.capabilities.state.saved_names()}
        state_dict, before = self._check_state(state_dict, known), self.state_dict()
        try:
            self._restore(state_dict, known)
        except Exception:
            self._restore(before, known)
            raise

    def _with_saved_projections(self, saved: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Saved groups with projections in the place of descriptions; those that had one object have one again."""
        groups = [dict(group) for group in saved]
        restored: dict[tuple[int, str], Projection] = {}
        for ours, group in zip(self.param_groups, groups, strict=True):
            if "projection" in group and "projection" in ours:
                key = id(ours["projection"]), repr(group["projection"])
                if key not in restored:
                    restored[key] = self._projection_like(ours["projection"], group["projection"])
                group["projection"] = restored[key]
        return groups

    def _projection_like(self, projection: Projection, description: Any) -> Projection:
        """A projection with saved options; where nobody has asked for the default one, that of the saved name."""
        name = description.get("name") if isinstance(description, Mapping) else None
        by_default = "projection" not in self._rules.given and projection is self.defaults["projection"]
        if by_default and name in PROJECTIONS and name != projection.name:
            projection = PROJECTIONS[str(name)]()
        return projection.restored(description)

    def _restore(self, state_dict: dict[str, Any], known: set[str]) -> None:
        """Put a checked state in place of the present one."""
        groups = self._with_saved_projections(state_dict["param_groups"])
        default = self.defaults["projection"]
        places = [place for place, group in enumerate(self.param_groups) if group.get("projection") is default]
        super().load_state_dict({"state": dict(state_dict["state"]), "param_groups": groups})
        for place in places:
            self.defaults["projection"] = self.param_groups[place]["projection"]
        projections = self._projections()
        for projection, saved in zip(projections, state_dict.get("solvers", [{}] * len(projections)), strict=False):
            if projection.solver is not None:
                projection.solver.load_state_dict(saved)
        self._derived, self._graphs, self._finite_check = {}, GraphedSteps(), DeferredFiniteCheck()
        for weight, name, value in saved_tensors(state_dict, self.param_groups):
            if name in known:
                self.state[weight][name] = value
        for layer in self._layers.values():
            self._attach_tape(layer)


class _StepAlong(JoinHook):
    """Makes every step that ranks with batches make, with their gradients and without rows of its own."""

    def __init__(self, optimizer: QPSBGD) -> None:
        self.optimizer = optimizer

    def main_hook(self) -> None:
        with temporary_attributes([self.optimizer], _has_batch=False):
            self.optimizer.step()


def _chosen_projection(
    projection: str | Projection | None, solver: str | Solver | None, recommended: Projection
) -> Projection:
    """The projection of an object, a name, a solver, or by default the recommended one."""
    if projection is None and solver is None:
        return recommended
    if solver is None:
        return make_projection(projection).with_network_default(recommended)
    kind = PROJECTIONS.get(projection) if isinstance(projection, str) else None
    if kind is not None and kind().solver is None:
        raise ValueError(f'the {projection} has no solver; leave it out, or use projection="spins"')
    chosen = make_projection("spins" if projection is None else projection, solver=solver)
    return chosen.with_network_default(recommended)


def _now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
