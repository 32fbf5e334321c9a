"""QP-SBGD: step against the binary vector that explains a layer's output gradients best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord, Tape
from qpsbgd.optim.layerwise import Layers, LayerwiseOptimizer, check_range, clip_latent
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.qubo.binary_map import Scale, binary_map, check_scale
from qpsbgd.solvers import Solver, make_solver

if TYPE_CHECKING:
    from qpsbgd.optim import cuda_graph
    from qpsbgd.solvers.annealer.budget import Estimate

_FAMILY = ("quadratic", "linear", "offset")
_MOST_GRAPHS = 4

Records = dict[BinaryLayer, tuple[dict[str, Any], LayerRecord]]


class QPSBGD(LayerwiseOptimizer):
    """Quantum projected stochastic binary-gradient descent (Alg. 1), with momentum on the QUBO.

        Q̄ ← β Q̄ + (1−β) Q,   S̄ ← β S̄ + (1−β) S,   G = argmin over {−1, +1} of the family (Q̄, S̄),
        Ω ← clip(Ω − lr · G, ±clip)

    where (Q, S) is the `binary_map` of the rows that the layer saw since the last step. A step takes the records:
    call it after `backward`, as always. `zero_grad` forgets them too, and is to be called after passes that are not
    meant for training, such as `torch.autograd.grad` for a saliency map. A column without gradient, now or in the
    momentum, is not updated.

    Args:
        model_or_layers: A model, binary layers, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights, which live in [−1, 1].
        solver: Name of a solver or a solver object; see `qpsbgd.solvers`.
        scale: κ of `binary_map`, or "literal" for the paper's equation as printed.
        momentum: β. Zero is the paper's method.
        clip: Bound of the latent weights; None leaves them free, as the paper does.

    Attributes:
        solutions: The solver's answers of the last step, one per updated layer, in the order of the layers.
    """

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
        self.solutions: list[Solution] = []
        self._tapes: dict[BinaryLayer, Tape] = {}
        self._forget_graphs()
        super().__init__(model_or_layers, {"lr": lr, "scale": scale, "momentum": momentum, "clip": clip})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Solve the recorded QUBOs and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after the solver has answered, so that a step whose solver failed or
        was interrupted can be repeated.

        Raises:
            RuntimeError: No layer has recorded a backward pass since the last step.
            ValueError: A layer saw NaN or infinite values.
        """
        loss = self._run(closure)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._forget()
            return loss

        try:
            records = self._records()
            if not self._graphed(records):
                self._one_by_one(records)
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._forget()
        return loss

    def _one_by_one(self, records: Records) -> None:
        """The step as the class describes it."""
        families = {}
        for layer, (group, record) in records.items():
            try:
                family = binary_map(record.inputs, record.output_grads, gain=layer.gain, scale=group["scale"])
            except ValueError as error:
                raise ValueError(f"{layer}: {error}") from error
            families[layer] = self._average(layer, family, momentum=group["momentum"])
        self.solutions = self._solve(list(families.values()))
        moved = []
        for (layer, family), solution in zip(families.items(), self.solutions, strict=True):
            # No gradient, no update: such a column has no linear term.
            update = (solution.spins * family.linear.any(0)).T.reshape(layer.weight.shape)
            moved.append(layer.weight.sub(update, alpha=float(records[layer][0]["lr"])))
            clip_latent(moved[-1], records[layer][0]["clip"])
        for (layer, family), weight in zip(families.items(), moved, strict=True):
            layer.weight.copy_(weight)
            if records[layer][0]["momentum"]:
                self._keep(layer, [getattr(family, name) for name in _FAMILY])

    def _graphed(self, records: Records) -> bool:
        """The same step as one CUDA graph, where there is a GPU and the rows have come in these shapes before."""
        if not all(layer.weight.is_cuda for layer in records):
            return False
        from qpsbgd.optim import cuda_graph

        parts = []
        for layer, (group, record) in records.items():
            state = self.state.get(layer.weight) or {}
            mean = [state[name] for name in _FAMILY] if group["momentum"] and state else None
            rate = self._rate(state, group["momentum"])
            lr = float(group["lr"])
            parts.append(cuda_graph.GraphPart(layer, record, group["scale"], group["clip"], mean, rate, lr))
        signature = tuple(part.signature() for part in parts)
        graph = self._graphs.get(signature)
        if graph is None:
            # The first steps run one by one: shapes that come seldom are not worth a graph.
            shapes = tuple((part.record.inputs.shape, part.layer.weight.shape) for part in parts)
            self._seen[shapes] += 1
            descent = cuda_graph.descent_of(self.solver, parts) if self._seen[shapes] > 3 else None
            if descent is None:
                return False
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            graph = self._graphs[signature] = cuda_graph.GraphedStep(parts, descent)
        if not graph.replay(parts):
            return False
        self.solutions = graph.solutions
        for layer, mean in zip(records, graph.means, strict=True):
            if records[layer][0]["momentum"]:
                self._keep(layer, mean)
        return True

    def _keep(self, layer: BinaryLayer, mean: list[Tensor]) -> None:
        """Make `mean` the layer's, in the tensors that are there: a graph holds on to them."""
        state = self.state[layer.weight]
        for name, value in zip(_FAMILY, mean, strict=True):
            if name not in state:
                state[name] = value
            elif state[name] is not value:
                state[name].copy_(value)
        state["step"] = state.get("step", 0) + 1

    def estimate(self, steps: int = 1) -> Estimate:
        """What that many steps cost on the solver's chip: submissions and seconds of the chip; nothing is sent.

        Raises:
            TypeError: The solver runs on no chip.
        """
        if not hasattr(self.solver, "estimate"):
            raise TypeError(f"{self.solver} asks no annealer, so steps cost no time of one; see the solver 'dwave'")
        shapes = [(layer.weight[0].numel(), len(layer.weight)) for layer in self._layers.values()]
        cost: Estimate = self.solver.estimate(shapes)
        return cost * steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._forget()

    def _records(self) -> Records:
        records: Records = {}
        for group in self.param_groups:
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.weight is not weight:
                    raise RuntimeError(f"the weight of {layer} was replaced by a new parameter; make a new optimiser")
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser that was made later; step that one, or make a new one"
                    )
                record = self._tapes[layer].read()
                if record is None:
                    continue
                if group["scale"] == "literal":
                    record = LayerRecord(record.inputs, record.output_grads / self._grad_scale())
                records[layer] = group, record
        if not records:
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes)"
            )
        return records

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

    def _average(self, layer: BinaryLayer, family: QuboFamily, *, momentum: float) -> QuboFamily:
        state = self.state.get(layer.weight)
        if not momentum or not state:
            return family
        old, new = [state[name] for name in _FAMILY], [getattr(family, name) for name in _FAMILY]
        return QuboFamily.trusted(*torch._foreach_lerp(old, new, self._rate(state, momentum)))

    @staticmethod
    def _rate(state: dict[str, Any], momentum: float) -> float:
        """Of a mean started from zero and divided by 1 − βᵗ, so that the first batch weighs no more than others."""
        step: int = state.get("step", 0) + 1
        return (1 - momentum) / (1 - momentum**step)

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

    def _forget_graphs(self) -> None:
        self._graphs: dict[tuple[object, ...], cuda_graph.GraphedStep] = {}
        self._seen: Counter[tuple[object, ...]] = Counter()

    def _adopt(self, layer: BinaryLayer) -> None:
        layer.latent_forward = False
        layer.tape = self._tapes[layer] = Tape()

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
        """Go on as if never stopped."""
        self.solver.load_state_dict(state_dict.get("solver", {}))
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
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
            self.solutions, self._tapes = [], {}
            self._forget_graphs()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix(')')}solver: {self.solver}\n)"
