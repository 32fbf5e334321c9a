"""Which optimiser trains which parameter: every one exactly one."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.binary_optimizer import BinaryOptimizer


def real_optimizer(
    model: nn.Module, beside: Optimizer, kind: type[Optimizer] = torch.optim.Adam, **options: Any
) -> Optimizer:
    """An ordinary optimiser for all parameters that `beside` does not train: biases, norms, encoders.

    In a model without such parameters its steps do nothing; a GradScaler does not accept such an optimiser.

    Args:
        model: The whole model.
        beside: The binary optimiser of the model.
        kind: Class of the optimiser to make.
        **options: Passed on to it, such as `lr=1e-3`.

    Raises:
        ValueError: A binary layer's weight was left out by `beside`, or `beside` holds parameters of another model.
    """
    claimed = {p for group in beside.param_groups for p in group["params"]}
    rest = [p for p in model.parameters() if p.requires_grad and p not in claimed]
    optimizer = kind([{"params": rest}], **options)
    check_claimed(model, beside, optimizer)
    return optimizer


def check_claimed(model: nn.Module, *optimizers: Optimizer) -> None:
    """Check that every trainable parameter of `model` has exactly one optimiser, binary weights a binary one.

    Raises:
        ValueError: Names the parameters claimed twice, never, by the wrong kind, or from outside the model.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    binary = {layer.weight for layer in model.modules() if isinstance(layer, BinaryLayer)}
    claims, ordinary = Counter[Tensor](), set[Tensor]()
    for optimizer in optimizers:
        members = [p for group in optimizer.param_groups for p in group["params"]]
        claims.update(members)
        ordinary.update([] if isinstance(optimizer, BinaryOptimizer) else members)
    faults = {
        "claimed by more than one optimiser": [names.get(p, "?") for p, count in claims.items() if count > 1],
        "claimed by none": [name for p, name in names.items() if p.requires_grad and p not in claims],
        "binary weights in an ordinary optimiser": [names[p] for p in ordinary & binary],
        "claimed but not of this model": [f"shape {tuple(p.shape)}" for p in claims if p not in names],
    }
    messages = [f"{fault}: {', '.join(parameters)}" for fault, parameters in faults.items() if parameters]
    if messages:
        raise ValueError("every parameter needs exactly one optimiser; " + "; ".join(messages))
