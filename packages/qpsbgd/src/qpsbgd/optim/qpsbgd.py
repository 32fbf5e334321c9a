"""QP-SBGD: steps along the least-squares projection of each layer's gradient, over ±1 or over the reals."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Literal

import torch
from torch._compile import _disable_dynamo

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord, MomentTape, Tape
from qpsbgd.openmp import guard_fork
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.optim.cuda_graph import GraphedSteps
from qpsbgd.optim.functional import LayerUpdate, qpsbgd
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.recommend import RATE, Network, Recommendation, momentum_of
from qpsbgd.parallel.distributed_solver import check_serves_shards, with_distributed_solver
from qpsbgd.parallel.ranks import Record, gather_records
from qpsbgd.parallel.shards import distribute_saved, is_sharded, local
from qpsbgd.projections import PROJECTIONS, Direction, LayerInputs, Projection, make_projection
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.annealers.budget import Estimate

_RANGES = 2.0  # clip="range": the bound of the latent weights in initial ranges
_SILENT_STEPS = 10  # steps after which layers that have never recorded anything are reported


class QPSBGD(BinaryOptimizer):
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

    _recommended: Recommendation
    _solutions: list[Callable[[], list[Solution]]]
    _derived: dict[BinaryLayer, dict[str, Any]]  # what follows from the states
    _tapes: dict[BinaryLayer, MomentTape | Tape]
    _moved: set[BinaryLayer]

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
        options = {"lr": lr, "projection": _chosen_projection(projection, solver), "momentum": momentum, "clip": clip}
        super().__init__(params, {**options, "steps": steps, "warmup": warmup, "relative": relative}, real, RATE)

    def _defaults(self, options: Mapping[str, Any], network: Network, rate_factor: float | None) -> dict[str, Any]:
        options, recommended = dict(options), network.recommendation(options["steps"])
        self._recommended = recommended
        chosen = options["projection"] or recommended.projection
        options["projection"] = chosen = chosen.with_network_default(recommended.projection)
        if options["momentum"] is None:
            options["momentum"] = momentum_of(chosen, options["steps"])
        if options["clip"] == "auto":
            options["clip"] = _usual_clip(relative=options["lr"] is None or options["relative"] is True)
            self._given.remove("clip")
        else:
            self._given.add("clip")  # None, too, is a choice
        return super()._defaults(options, network, rate_factor)

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        options = super()._complete(options)
        if (name := options.get("projection")) is not None:
            # Groups that name the same projection have one object, and with it one solver.
            known = {group["projection"].name: group["projection"] for group in (self.defaults, *self.binary_groups)}
            projection = known[name] if isinstance(name, str) and name in known else make_projection(name)
            options = options | {"projection": projection.with_network_default(self._recommended.projection)}
        if "clip" not in self._given and "relative" in options:
            options = {"clip": _usual_clip(relative=options["relative"])} | options
        if "momentum" not in self._given and {"projection", "steps"} & set(options):
            complete = {**self.defaults, **options}
            options = {"momentum": momentum_of(complete["projection"], complete["steps"])} | options
        return options

    def _check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        options["projection"].check(layer)
        if is_sharded(layer.weight):
            check_serves_shards(options["projection"], layer)

    def __repr__(self) -> str:
        unused = self._given | {"scale"}
        if not self._real.parts or {"lr", "kind"} & set(self._real.options or ()):
            unused |= {"real_lr", "vector_lr", "scale_lr"}
        reasons = {name: reason for name, reason in self._recommended.reasons.items() if name not in unused}
        lines = [f"    {line}" for line in str(replace(self._recommended, reasons=reasons)).splitlines()]
        return "\n".join([super().__repr__(), "What was not given is recommended for the network:", *lines])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Project every layer's gradients and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after all directions are known and the real parameters have made their
        step, so a step whose solver or real optimiser failed, or that was interrupted, can be repeated.

        Raises:
            RuntimeError: No layer has recorded a backward pass since the last step; or, with several processes, another
                one failed (docs/integrations.md).
            ValueError: A layer's inputs or gradients hold NaN or infinite values.
        """
        loss = self._run(closure)
        guard_fork()
        self._check_usable()
        records = self._ranks.synchronize(self._records)
        # In an autocast block the products would be computed in half precision.
        with torch.autocast(next(iter(self._layers)).device.type, enabled=False):
            moved = self._move(records)
        self._clear_tapes()
        self._finish_step(*self._silent_layers(moved))
        return loss

    def _check_usable(self) -> None:
        """Raise RuntimeError under what would make wrong steps, or let ranks wait for each other for ever."""
        if self._ranks.size > 1 and any(tape.inside_join for tape in self._tapes.values()):
            name = type(self).__name__
            raise RuntimeError(f"{name} does not work inside torch's Join; give all ranks as many batches")
        self.__dict__.pop("grad_scale", None)
        if self.__dict__.pop("found_inf", None) is not None:  # a GradScaler's
            raise RuntimeError('scale="literal" depends on the size of the loss: use bfloat16 instead of a GradScaler')

    def _records(self) -> dict[BinaryLayer, Record]:
        """The records of the layers with a gradient."""
        members = [(g, layer) for g, layer in self._members() if layer.weight.grad is not None and layer.training]
        records = {layer: self._tapes[layer].read() for _, layer in members}
        moments = {layer: record.sums for layer, record in records.items() if isinstance(record, LayerMoments)}
        self._check_gradients(records, moments)
        return records

    @_disable_dynamo  # torch loses what a dataclass is given in a step that it compiles in parts
    def _move(self, records: Mapping[BinaryLayer, Record]) -> set[BinaryLayer]:
        """Make the step with the rows of all processes; returns the layers that it moved."""
        members = [(group, layer) for group, layer in self._members() if layer in records]
        if self._ranks.size > 1:
            needed = {layer: group["projection"] for group, layer in members if self._tapes[layer].wanted}
            records = gather_records(records, needed, self._ranks)
        updates = self._updates(members, records)
        real_alone = not members and any(p.grad is not None for group in self.real_groups for p in group["params"])
        if not updates and not real_alone:
            raise RuntimeError(
                "step() found no recorded pass: run the model that this optimiser was made for, not a copy of it, in "
                "training mode with gradients on, and call loss.backward() before every step (zero_grad and step "
                "forget earlier passes; under torch.func nothing is recorded)"
            )
        # Not by a CUDA graph where an observer wants the figures of the directions.
        step = self._graphs.step if updates and updates[0].weight.is_cuda and not self.observers else qpsbgd
        self._keep(updates, step(updates, before=self._step_real))
        return {update.inputs.layer for update in updates}

    def _updates(
        self, members: Sequence[tuple[dict[str, Any], BinaryLayer]], records: Mapping[BinaryLayer, Record]
    ) -> list[LayerUpdate]:
        """The updates of the layers that can take part in this step."""
        several = self._ranks.size > 1
        projections = {
            (id(p), sharded): with_distributed_solver(p, self._ranks, sharded=sharded) if several else p
            for p in self._projections()
            for sharded in (False, True)
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
            if saved := state.entries(derived=False):
                self.state[layer.weight], self._derived[layer] = saved, state.entries(derived=True)
            self._tapes[layer].wanted = update.projection.records_at(state.step)
            for observer in self.observers:
                observer(layer, direction.figures())

    def _inputs(self, group: dict[str, Any], layer: BinaryLayer, record: Record) -> LayerInputs:
        assert layer.weight.grad is not None
        grad, shards = local(layer.weight.grad), self._ranks if is_sharded(layer.weight) else None
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
        if record is not None and not (record.rows if isinstance(record, LayerMoments) else len(record.inputs)):
            raise ValueError(f"{layer}: the batch is empty: a step needs at least one row; leave out such batches")
        if isinstance(record, LayerRecord) and group["projection"].absolute:
            # DistributedDataParallel minimises the mean of the ranks' losses.
            record = LayerRecord(record.inputs, record.output_grads / self._ranks.size)
        entries = {**self.state.get(layer.weight, {}), **self._derived.get(layer, {})}
        state = group["projection"].capabilities.state.of(entries)
        return LayerInputs(layer, grad, record, float(group["momentum"]), state, shards, self._rate(group, layer))

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
        self._clear_tapes()

    def _clear_tapes(self) -> None:
        for tape in self._tapes.values():
            tape.clear()

    def _attach(self, layer: BinaryLayer) -> None:
        super()._attach(layer)
        group = next(g for g in self.binary_groups if any(weight is layer.weight for weight in g["params"]))
        step = self.state.get(layer.weight, {}).get("step", 0)
        projection, weight = group["projection"], layer.weight
        most = None if projection.rows is None else -(-projection.rows // self._ranks.size)
        moments, wanted = projection.moments(layer), projection.records_at(step)
        layer.tape = self._tapes[layer] = (
            Tape(weight, most, wanted=wanted)
            if moments is None
            else MomentTape(moments, most, wanted=wanted, sharded=is_sharded(weight))
        )

    def _silent_layers(self, moved: set[BinaryLayer]) -> Iterator[str]:
        """A message, given once, for every layer that could be trained but never was; the step has `moved` these."""
        self._steps += 1
        self._moved |= moved
        if self._steps == _SILENT_STEPS:
            for layer in self._tapes:
                if layer not in self._moved and layer.weight.requires_grad:
                    yield (
                        f"{layer} is not trained: it has recorded nothing in {self._steps} steps; call train() on it, "
                        "call it instead of reading its .weight, let the loss depend on it, or freeze its weight"
                    )

    def _members(self) -> Iterator[tuple[dict[str, Any], BinaryLayer]]:
        self._check_in_place()
        for group in self.binary_groups:
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser, made later; step that, or make a new one"
                    )
                yield group, layer

    def _projections(self) -> list[Projection]:
        """Every projection once, in the order of the groups."""
        return list({id(group["projection"]): group["projection"] for group in self.binary_groups}.values())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler tells of itself instead of dividing `.grad`: where more depends on it, it is refused."""
        return any(projection.absolute for projection in self._projections())

    def _reset_transient_state(self) -> None:
        super()._reset_transient_state()
        self._tapes, self._derived, self._solutions = {}, {}, []
        self._steps, self._moved = 0, set()
        self._graphs = GraphedSteps()

    def state_dict(self) -> dict[str, Any]:
        """Groups, momentum and the solvers' own states; records of passes not yet stepped are not part of it."""
        state = super().state_dict()
        distribute_saved(state, self.param_groups)
        for entry, group in zip(state["param_groups"], self.param_groups, strict=True):
            if "projection" in group:
                entry["projection"] = group["projection"].describe()
        solvers = [{} if p.solver is None else p.solver.state_dict() for p in self._projections()]
        return {**state, "solvers": solvers} if any(solvers) else state

    @property
    def state_names(self) -> Set[str]:
        """What its projections keep, and all others, whose states `_restore` refuses with the projection's name."""
        kinds = [type(projection) for projection in self._projections()]
        return {name for kind in (*kinds, *PROJECTIONS.values()) for name in kind.capabilities.state.saved_names()}

    def _restore(self, state_dict: dict[str, Any]) -> None:
        default, restored = self.defaults["projection"], dict[tuple[int, str], Projection]()
        groups = [dict(group) for group in state_dict["param_groups"]]
        for present, group in zip(self.param_groups, groups, strict=True):
            if "projection" in group and "projection" in present:  # what had one object has one again
                key = id(present["projection"]), repr(group["projection"])
                if key not in restored:
                    restored[key] = present["projection"].with_saved_options(group["projection"])
                group["projection"] = restored[key]
                if present["projection"] is self.defaults["projection"]:
                    default = group["projection"]
        super()._restore({"state": dict(state_dict["state"]), "param_groups": groups})
        self.defaults["projection"] = default
        projections = self._projections()
        for projection, saved in zip(projections, state_dict.get("solvers", [{}] * len(projections)), strict=False):
            if projection.solver is not None:
                projection.solver.load_state_dict(saved)
        self._derived, self._graphs = {}, GraphedSteps()
        for layer in self._layers.values():
            self._attach(layer)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recommended": self._recommended}


def _usual_clip(*, relative: bool) -> float | Literal["range"]:
    """The bound of latent weights where none is given: in initial ranges where the rate is, else 1."""
    return "range" if relative else 1.0


def _chosen_projection(projection: str | Projection | None, solver: str | Solver | None) -> Projection | None:
    """The projection of an object, a name or a solver; None where there is neither."""
    if solver is None:
        return None if projection is None else make_projection(projection)
    kind = PROJECTIONS.get(projection) if isinstance(projection, str) else None
    if kind is not None and kind().solver is None:
        raise ValueError(f'the {projection} has no solver; leave it out, or use projection="spins"')
    return make_projection("spins" if projection is None else projection, solver=solver)
