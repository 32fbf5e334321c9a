"""Figures of every layer and step of a training run, collected, drawn, or passed to a callback."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.parallel.shards import local
from qpsbgd_qubo.options import AT_LEAST_ONE, AT_LEAST_ONE_OR_NONE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Observation:
    """The figures of one layer in one step; see `Monitor`.

    Attributes:
        step: Number of the step, from 1; a resumed run goes on counting.
        layer: Name of the layer in the model.
        figures: Name → number.
    """

    step: int
    layer: str
    figures: Mapping[str, float]


Callback = Callable[[Sequence[Observation]], object]
"""Takes the observations of one step; `list.extend` of a list of your own is one."""


class Monitor:
    """Collects figures of every layer at each step of a binary optimiser, or passes them to a callback.

        with Monitor(model, optimizer, every=10) as monitor:
            …                    # after a step: monitor.note_loss(loss)
        monitor.plot()

    Per layer that the step moved:

        flip_rate           share of the binary weights whose sign changed
        step_size           root mean square of the latent weights' change, in units of `initial_bound`
        agreement           share of the latent weights that moved against their gradient `.grad`, of those that moved
                            and have one; left out if there are none. 0.5 is a random direction.
        energy              of spins: mean energy of the solution, over the columns
        energy_minus_sign   of spins: the same, minus that of the sign vector sign(−s); negative where the solver
                            found better spins
        spins_off_sign      of spins: share of the spins that differ from the sign vector
        penalty             of the ridge: δ

    Training is the same with and without a monitor, bit for bit. Steps that a GradScaler skips are not reported. On a
    GPU, a step that is reported waits for the device and is not replayed as a CUDA graph, so choose `every` above 1
    where speed matters. The monitor is not part of a copied or pickled optimiser. Where FSDP
    has sharded a layer, a rank's figures are of its own output units.

    Args:
        model: The trained model or a part of it; its binary layers are reported by their names.
        optimizer: A binary optimiser: `QPSBGD`, `BinaryConnect`, `StraightThrough`, `Bop` or `ProxQuant`.
        callback: Called with a list of `Observation`s after each reported step; without one they are kept in
            `observations`.
        every: Report every `every`-th step, as counted by the optimiser.
        epoch: Show a line after this many steps, such as the batches of an epoch: the mean loss and the mean share of
            flips per layer since the last line.
        show: Function that shows the line.

    Attributes:
        observations: All observations so far, if there is no callback.
        losses: The losses passed to `note_loss`, by step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: BinaryOptimizer,
        callback: Callback | None = None,
        *,
        every: int = 1,
        epoch: int | None = None,
        show: Callable[[str], object] = print,
    ) -> None:
        if not isinstance(optimizer, BinaryOptimizer):
            raise TypeError(f"a monitor watches QPSBGD, BinaryConnect or ProxQuant, got {type(optimizer).__name__}")
        AT_LEAST_ONE.checked("every", every)
        AT_LEAST_ONE_OR_NONE.checked("epoch", epoch)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be a function of a list of observations, got {callback!r}")
        self.observations: list[Observation] = []
        self.losses: dict[int, float] = {}
        self._callback: Callback = self.observations.extend if callback is None else callback
        self._model, self._optimizer, self._every = model, optimizer, every
        self._epoch, self._show = epoch, show
        self._flips: dict[str, list[float]] = {}
        self._losses: list[float] = []
        if not self._names():
            raise ValueError("the optimiser trains no layer of this model; pass the model it was made for")
        self._weights: dict[BinaryLayer, Tensor] = {}
        self._figures: dict[BinaryLayer, dict[str, float]] = {}
        self._note_figures = self._figures.__setitem__
        self._hooks = (optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after))

    def note_loss(self, loss: Tensor | float) -> None:
        """Note the loss of the latest step, for `plot` and the lines per epoch."""
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        self.losses[self._steps()] = value
        self._losses.append(value)
        if self._epoch is not None and self._steps() % self._epoch == 0:
            flips = ", ".join(f"{layer} {100 * sum(r) / len(r):.2f} %" for layer, r in self._flips.items())
            mean = sum(self._losses) / len(self._losses)
            self._show(f"step {self._steps()}: loss {mean:.4g}; flips per step: {flips or 'not observed'}")
            self._flips, self._losses = {}, []

    def plot(self) -> Figure:
        """A figure of the losses, the share of flips per layer and, with spins, the energies; needs matplotlib."""
        try:
            from qpsbgd.analysis.monitor_figure import run_figure
        except ImportError as error:
            raise ImportError("Monitor.plot needs matplotlib: pip install 'qpsbgd[plot]'") from error
        return run_figure(self.observations, self.losses)

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()
        self._forget()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _names(self) -> dict[BinaryLayer, str]:
        trained = {weight for group in self._optimizer.binary_groups for weight in group["params"]}
        layers = [(name, module) for name, module in self._model.named_modules() if isinstance(module, BinaryLayer)]
        return {layer: name or type(layer).__name__ for name, layer in layers if layer.weight in trained}

    def _steps(self) -> int:
        """Steps that the optimiser has made, also before a resume."""
        return max(int(group["step"]) for group in self._optimizer.binary_groups)

    def _before(self, _: Optimizer, args: Any, kwargs: Any) -> None:
        self._forget()  # the last step may have failed
        if (self._steps() + 1) % self._every:
            return
        self._weights = {layer: local(layer.weight.detach()).clone() for layer in self._names()}
        self._optimizer.observers.append(self._note_figures)

    @torch.no_grad()
    def _after(self, _: Optimizer, args: Any, kwargs: Any) -> None:
        names, step = self._names(), self._steps()
        observations = [
            Observation(step, names[layer], _movement(layer, before) | self._figures[layer])
            for layer, before in self._weights.items()
            if layer in self._figures and before.numel()
        ]
        self._forget()
        for observation in observations:
            self._flips.setdefault(observation.layer, []).append(observation.figures["flip_rate"])
        if observations:
            self._callback(observations)

    def _forget(self) -> None:
        self._weights.clear()
        self._figures.clear()
        if self._note_figures in self._optimizer.observers:
            self._optimizer.observers.remove(self._note_figures)


def _movement(layer: BinaryLayer, before: Tensor) -> dict[str, float]:
    """How a step moved a layer that had the latent weights `before`, and still has its gradient; see `Monitor`."""
    after, grad = local(layer.weight.detach()), layer.weight.grad
    step = (after - before).to(torch.promote_types(after.dtype, torch.float32))
    flips = torch.count_nonzero((after >= 0) != (before >= 0))  # sign(0) = +1
    figures = {
        "flip_rate": flips.item() / step.numel(),
        "step_size": torch.linalg.vector_norm(step).item() / math.sqrt(step.numel()) / layer.initial_bound,
    }
    if grad is not None:
        signs = step.sign() * local(grad).sign()
        if compared := torch.count_nonzero(signs).item():
            figures["agreement"] = torch.count_nonzero(signs < 0).item() / compared
    return figures
