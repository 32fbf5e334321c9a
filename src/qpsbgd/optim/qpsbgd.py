"""QP-SBGD: step against the binary vector that explains a layer's output gradients best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qpsbgd.binary_map import Scale, binary_map, check_scale
from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.layerwise import Layers, LayerwiseOptimizer, check_range, clip_latent
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.recording import Tape
from qpsbgd.solvers import Solver, make_solver

_FAMILY = ("quadratic", "linear", "offset")


class QPSBGD(LayerwiseOptimizer):
    """Quantum projected stochastic binary-gradient descent (Alg. 1), with momentum on the QUBO.

        Q̄ ← β Q̄ + (1−β) Q,   S̄ ← β S̄ + (1−β) S,   G = argmin over {−1, +1} of the family (Q̄, S̄),
        Ω ← clip(Ω − lr · G, ±clip)

    where (Q, S) is the `binary_map` of the rows that the layer saw since the last step. A step takes the records:
    call it after `backward`, as always. `zero_grad` forgets them too. A column without gradient, now or in the
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
        super().__init__(model_or_layers, {"lr": lr, "scale": scale, "momentum": momentum, "clip": clip})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Solve the recorded QUBOs and move the latent weights; returns the closure's loss.

        Weights, momentum and records change only after the solver has answered, so that a step that was interrupted
        or failed can be repeated.

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
            families = self._families()
            averaged = {
                layer: self._average(layer, family, momentum=group["momentum"])
                for layer, (group, family) in families.items()
            }
            self.solutions = self._solve(list(averaged.values()))
        except BaseException:
            # GradScaler would multiply the scale that it left here into that of the repeated step.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        for (layer, (group, _)), solution in zip(families.items(), self.solutions, strict=True):
            family = averaged[layer]
            if group["momentum"]:
                state = self.state[layer.weight]
                state.update({name: getattr(family, name) for name in _FAMILY}, step=state.get("step", 0) + 1)
            # No gradient, no update: such a column has no linear term.
            moved = (family.linear != 0).any(0)
            update = torch.where(moved, solution.spins, 0).T.reshape(layer.weight.shape)
            layer.weight.sub_((group["lr"] * update).to(layer.weight.dtype))
            clip_latent(layer.weight, group["clip"])
        self._forget()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and records."""
        super().zero_grad(set_to_none)
        self._forget()

    def _families(self) -> dict[BinaryLayer, tuple[dict[str, Any], QuboFamily]]:
        families = {}
        for group in self.param_groups:
            for weight in group["params"]:
                layer = self._layers[weight]
                if layer.tape is not self._tapes[layer]:
                    raise RuntimeError(
                        f"{layer} is trained by another optimiser that was made later; step that one, or make a new one"
                    )
                record = self._tapes[layer].read()
                if record is None:
                    continue
                grads = record.output_grads
                if group["scale"] == "literal":
                    grads = grads / self._grad_scale()
                try:
                    family = binary_map(record.inputs, grads, gain=layer.gain, scale=group["scale"])
                except ValueError as error:
                    raise ValueError(f"{layer}: {error}") from error
                families[layer] = group, family
        if not families:
            raise RuntimeError(
                "step() found no recorded pass: run the model in training mode with gradients on and call "
                "loss.backward() before every step (zero_grad and step forget earlier passes)"
            )
        return families

    def _solve(self, families: list[QuboFamily]) -> list[Solution]:
        solutions = self.solver.solve_all(families)
        wanted, came = (
            [tuple(t.shape) for t in ts] for ts in ([f.linear for f in families], [s.spins for s in solutions])
        )
        if wanted != came:
            raise ValueError(f"{self.solver} must return spins of shapes {wanted}, got {came}; see qpsbgd.testing")
        return solutions

    def _average(self, layer: BinaryLayer, family: QuboFamily, *, momentum: float) -> QuboFamily:
        state = self.state.get(layer.weight)
        if not momentum or not state:
            return family
        # The mean started from zero and divided by 1 − βᵗ, so that the first batch weighs no more than others.
        rate = (1 - momentum) / (1 - momentum ** (state["step"] + 1))
        return QuboFamily.trusted(*(state[name].lerp(getattr(family, name), rate) for name in _FAMILY))

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
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix(')')}solver: {self.solver}\n)"
