"""The methods that experiments compare, with the options among which each one's best are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from qpsbgd.optim import QPSBGD, BinaryConnect, ProxQuant

Options = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """One line of a table.

    Attributes:
        label: Its name in tables and figures.
        build: Makes the optimiser from a model, options, and the number of steps that training will have.
        grid: The options to choose from.
    """

    label: str
    build: Callable[[nn.Module, Options, int], Optimizer]
    grid: tuple[Options, ...]


def learning_rates(*rates: float, **others: float) -> tuple[Options, ...]:
    """A grid over the learning rate, with other options the same."""
    return tuple({"lr": rate, **others} for rate in rates)


def _proxquant(model: nn.Module, options: Options, steps: int) -> Optimizer:
    # Its schedule is part of the method: how much of the way to ±1 the proximal steps cover by the end.
    pull = options["pull"]
    return ProxQuant(model, lr=options["lr"], rate=2 * pull / steps**2)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "qpsbgd": Method(
            "QP-SBGD", lambda model, options, _: QPSBGD(model, **options), learning_rates(0.001, 0.003, 0.01, 0.03)
        ),
        "bc-sgd": Method(
            "BC (SGD)",
            lambda model, options, _: BinaryConnect(model, update="sgd", **options),
            learning_rates(0.3, 1.0, 3.0) + learning_rates(0.1, 0.3, momentum=0.9),
        ),
        "bc-sign": Method(
            "BC (signSGD)",
            lambda model, options, _: BinaryConnect(model, update="sign", **options),
            learning_rates(0.001, 0.003, 0.01) + learning_rates(0.001, 0.003, momentum=0.9),
        ),
        "bc-adam": Method(
            "BC (Adam)",
            lambda model, options, _: BinaryConnect(model, update="adam", **options),
            learning_rates(0.001, 0.003, 0.01, 0.03),
        ),
        "proxquant": Method(
            "ProxQuant",
            _proxquant,
            tuple({"lr": lr, "pull": pull} for lr in (1.0, 3.0, 10.0) for pull in (0.1, 1.0)),
        ),
    }
)
