"""QP-SBGD: step against the vector that explains a layer's output gradients best, over ±1 or over the reals."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim.members import Layers
from qpsbgd.optim.projecting import ProjectingOptimizer
from qpsbgd.optim.rates import WARMUP
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.step import Share, advance
from qpsbgd.parallel.agreement import compared, described, joined
from qpsbgd.parallel.shared_solver import SharedSolver
from qpsbgd.projections import Projection, Seen, make_projection
from qpsbgd.projections.blocks import Blocks
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver
from qpsbgd_qubo.openmp import guard_fork

if TYPE_CHECKING:
    from qpsbgd_qubo.annealers.budget import Estimate

_RATE_FACTOR = 0.25
"""Of `default_rate`: chosen by benchmarks/training/rates.py on networks with and without norms."""
_RANGES = 2.0
"""clip="range": the bound of the latent weights in initial ranges."""


class QPSBGD(ProjectingOptimizer):
    """Quantum projected stochastic binary-gradient descent (Alg. 1).

        Ω ← clip(Ω − lr · G, ±clip),   G the layer's projection: "ridge", "spins" or "printed"

    "spins" is the paper's projection onto ±1, for annealers and solvers of QUBOs; "ridge" is the same least squares
    over the reals; "printed" is the paper's algorithm to the letter. `qpsbgd.projections` has their formulas. Use it
    like any optimiser: `zero_grad`, `backward`, `step`.

    Args:
        params: A model, binary layers, parameters, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights; None takes one from norms, depth and `steps` (`optim/rates.py`), relative
            to their initial range.
        projection: "ridge" (the default), "spins", "printed", or an object with its own options: `Spins(bits=2)`.
        solver: Short for `Spins(solver=…)`; the projection is then "spins" unless it is named.
        momentum: β of the mean gradient; None takes the projection's, 0.9, or 0 for "printed".
        clip: Bound of the latent weights: a number, "range" for twice their initial range, None to leave them free, as
            the paper does. "auto" is "range" where the rate is relative, and 1 elsewhere.
        steps: Steps of the whole training: the learning rate rises over the first of them and falls to zero, by a
            cosine, over the rest.
        warmup: Share of `steps` over which the rate rises.
        relative: Whether `lr` is in units of each layer's initial range; so by default only where no lr is given.
        real: Also train everything else in the model: True, or options of a torch optimiser, `dict(lr=1e-2)`, its
            class as `kind` (AdamW by default, at a rate of 0.003), `max_norm` to clip the gradient of these parameters,
            and `steps` (by default those of this optimiser). None leaves them to another optimiser, and warns if there
            is none; False does not warn. Parameters that are given one by one, as `model.parameters()`, are always
            trained.
    """

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
        warmup: float = WARMUP,
        relative: bool | None = None,
        real: Real = None,
    ) -> None:
        if projection == "ridge" and solver is not None:
            raise ValueError('the ridge has no solver; leave it out, or take projection="spins"')
        name = ("ridge" if solver is None else "spins") if projection is None else projection
        default = make_projection(name, **({} if solver is None else {"solver": solver}))
        options = {
            "lr": lr,
            "projection": default,
            "momentum": momentum,
            "clip": ("range" if lr is None or relative is True else 1.0) if clip == "auto" else clip,
            "steps": steps,
            "warmup": warmup,
            "relative": relative,
        }
        super().__init__(params, options, real)

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
        layers = list(self._layers.values())
        try:
            guard_fork()
            records = self._ranks.agreed(
                self._records, lambda: described(self.param_groups, layers, self.state), lambda: compared(layers)
            )
            if records is not None:
                # In an autocast block the products would be computed in half precision.
                with torch.autocast(layers[0].weight.device.type, enabled=False):
                    self._move(joined(records, self._wanted(records), self._ranks))
                self._step_real()
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        self._forget()
        if records is not None:
            self._count_step()
        return loss

    def _records(self) -> dict[BinaryLayer, LayerRecord | None] | None:
        """What the layers with a gradient recorded; None if a GradScaler skips this step."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return None
        layers = [layer for _, layer in self._members() if layer.weight.grad is not None and layer.training]
        self._check_gradients(layers)
        return {layer: self._tapes[layer].read() for layer in layers}

    def _wanted(self, records: Container[BinaryLayer]) -> dict[BinaryLayer, Projection]:
        """The layers whose rows this step needs."""
        members = [(g["projection"], layer) for g, layer in self._members() if layer in records]
        return {layer: projection for projection, layer in members if self._tapes[layer].wanted}

    def _move(self, records: Mapping[BinaryLayer, LayerRecord | None]) -> None:
        """Make the step with the rows of all processes."""
        shares = [self._share(group, layer, records[layer]) for group, layer in self._members() if layer in records]
        with_gradient = bool(shares)
        shares = [share for share in shares if share.projection.ready(share.seen)]
        self._check_heard({share.seen.layer for share in shares}, with_gradient)
        if self.observers:
            self._answers = advance(shares, self._shared, partial(_now, next(iter(self._layers)).device))
        else:
            self._answers = self._graphs.advance(shares, self._shared)
        for share, answer in zip(shares, self._answers, strict=True):
            layer = share.seen.layer
            if share.state:
                self.state[layer.weight] = share.state
            self._tapes[layer].wanted = share.projection.due(share.state.get("step", 0))
            for observer in self.observers:
                observer(layer, {**answer.figures(), "seconds": answer.seconds})

    def _share(self, group: dict[str, Any], layer: BinaryLayer, record: LayerRecord | None) -> Share:
        """A layer's share of a step."""
        grad, projection = layer.weight.grad, group["projection"]
        assert grad is not None
        scale = getattr(self, "grad_scale", None)  # a GradScaler's factor that is still in the gradients
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
        grad = grad if scale is None else grad / scale
        if record is not None and not len(record.inputs):
            raise ValueError(f"{layer}: the batch is empty: a step needs at least one row; leave out such batches")
        if record is not None and projection.absolute:
            if scale is None and hasattr(self, "found_inf"):
                raise RuntimeError('scale="literal" does not work after GradScaler.unscale_(); leave that call out')
            # DistributedDataParallel minimises the mean of the ranks' losses.
            factor = self._ranks.size * (1.0 if scale is None else scale)
            record = LayerRecord(record.inputs, record.output_grads / factor)
        state, cached = self.state.get(layer.weight, {}), self._cached.setdefault(layer, {})
        seen = Seen(layer, grad, record, float(group["momentum"]), state, cached)
        clip = _RANGES * layer.initial_bound if group["clip"] == "range" else group["clip"]
        return Share(seen, projection, self._rate(group, layer), clip, state, cached)

    def _shared(self, solver: Solver) -> Solver:
        return solver if self._ranks.size == 1 else SharedSolver(solver, self._ranks)

    @property
    def solutions(self) -> list[Solution]:
        """The solver's answers of the last step, one per updated layer and block, in the order of the layers."""
        return [solution for answer in self._answers for solution in answer.solutions()]

    def estimate(self, steps: int = 1) -> Estimate:
        """The cost of that many steps on the solver's annealer: submissions and QPU seconds; nothing is sent.

        Raises:
            TypeError: The solver uses no annealer.
        """
        costs: list[Estimate] = []
        for projection in self._projections():
            solver: Any = getattr(projection, "solver", self.solver)
            if not hasattr(solver, "estimate"):
                raise TypeError(f"{solver} uses no annealer, so its steps cost no QPU time; see the solver 'dwave'")
            layers = [layer for group, layer in self._members() if group["projection"] is projection]
            blocks = [Blocks.of(layer, projection.block) for layer in layers if hasattr(projection, "solver")]
            shapes = [(block.width, block.outputs) for block in blocks for _ in range(block.count)]
            if shapes:
                costs.append(solver.estimate(shapes) * (getattr(projection, "bits", 1) * steps))
        return sum(costs[1:], costs[0])

    def _check_heard(self, heard: set[BinaryLayer], with_gradient: bool) -> None:
        alone = not any(p.grad is not None for group in self.real_groups for p in group["params"])
        if not heard and (alone or with_gradient):
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes; under torch.func nothing "
                "is recorded)"
            )
        self._silent.report(self._layers.values(), heard)

    def _rate_factor(self, options: dict[str, Any]) -> float:
        return _RATE_FACTOR


def _now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
