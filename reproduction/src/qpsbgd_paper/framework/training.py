"""How the experiments train: one loop, the networks and batches that several of them share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR

from qpsbgd.nn import BinaryLinear, Gain

Measured = TypeVar("Measured")


def fit(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    *,
    rows: Iterable[Tensor],
    optimizers: Sequence[Optimizer],
    measure: Callable[[], Measured] | None = None,
    every: int = 1,
    before: Callable[[], object] | None = None,
    falling_over: int | None = None,
    summed: bool = False,
) -> list[Measured]:
    """Train the model; what `measure` gave, in evaluation mode without gradients, after every step, or after every few.

    `before` is called before every step, as `measure` is after it. `falling_over` so many steps, all rates fall
    linearly to a fiftieth. `summed` trains on the sum of the batch's losses.
    """
    schedules = [] if falling_over is None else [LinearLR(each, 1.0, 0.02, falling_over) for each in optimizers]
    measured = []
    for step, batch in enumerate(rows, 1):
        if before is not None:
            _evaluate(model, before)
        model.train()
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(loss(batch) * (len(batch) if summed else 1))
        for optimizer in optimizers:
            optimizer.step()
        for schedule in schedules:
            schedule.step()
        if measure is not None and step % every == 0:
            measured.append(_evaluate(model, measure))
    return measured


def _evaluate(model: nn.Module, measure: Callable[[], Measured]) -> Measured:
    model.eval()
    with torch.no_grad():
        return measure()


def fit_classifier(model: nn.Module, data: tuple[Tensor, Tensor], *, batch: int, steps: int, **how: Any) -> list[Any]:
    """`fit` by cross entropy on `steps` batches of inputs and targets: every row once in random order, then again."""
    inputs, targets = data

    def loss(rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs[rows]), targets[rows])

    return fit(model, loss, rows=batches(len(inputs), batch, steps), **how)


class BinaryMLP(nn.Module):
    """Binary linear layers with hardtanh between them; `constant` gives each one more input 1, in place of a bias."""

    def __init__(self, widths: Sequence[int], *, gain: Gain, constant: bool = False) -> None:
        super().__init__()
        self.constant = constant
        self.layers = nn.ModuleList(BinaryLinear(n + constant, m, gain=gain) for n, m in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, last width) for inputs (B, first width)."""
        for count, layer in enumerate(self.layers):
            x = nn.functional.hardtanh(x) if count else x
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1) if self.constant else x
            x = layer(x)
        return x


def batches(num_rows: int, batch: int, steps: int) -> Iterator[Tensor]:
    """Row numbers of `steps` batches: every row once in random order, then all of them again."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(num_rows)
        yield order[:batch]
        order = order[batch:]


def random_rows(num_rows: int, batch: int, steps: int) -> Iterator[Tensor]:
    """Row numbers of `steps` batches, each drawn with replacement."""
    return (torch.randint(num_rows, (batch,)) for _ in range(steps))


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest output is the target's."""
    return (outputs.argmax(1) == targets).double().mean().item()


def second_half(curve: Sequence[float]) -> float:
    """The mean over the second half of training."""
    late = curve[len(curve) // 2 :]
    return sum(late) / len(late)
