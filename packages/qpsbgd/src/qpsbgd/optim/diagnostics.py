"""Signs that a training run goes wrong without an error: every finding is a message, given once."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.parallel.shards import local

_SILENT_STEPS = 10
"""Steps after which a layer that has never recorded anything is reported."""
_PATIENCE = 2
"""Steps, after the first, in which another optimiser has to change a parameter; then it is taken to have none."""
_LOOK = 200
"""Steps after which signs should have changed, at the earliest."""
_SIGNS = 4096
"""Signs per layer that are compared."""
_ENOUGH = 1000
"""Signs in all layers below which fractions of them mean nothing."""
_FEW, _MANY = 0.002, 1 / 3
"""Fractions of changed signs below and above which a run is hopeless; good runs change 10 to 50 % in all."""
_LOSSES = 20
"""Losses whose means are compared, at the start and in the middle of a run."""
_NAMED = 4
"""Parameters that a message names; of the others it says how many there are."""


class SilentLayers:
    """Finds trainable layers that are not being trained."""

    def __init__(self) -> None:
        self._steps = 0
        self._heard: set[BinaryLayer] = set()
        self._reported: set[BinaryLayer] = set()

    def messages(self, layers: Iterable[BinaryLayer], recorded: set[BinaryLayer]) -> Iterator[str]:
        """One message per layer that has newly become silent."""
        self._steps += 1
        self._heard |= recorded
        for layer in layers:
            if layer in recorded or layer in self._reported or not layer.weight.requires_grad:
                continue
            if not layer.training:
                reason = "is in evaluation mode, so it records nothing; call train() on it, or freeze its weight"
            elif layer not in self._heard and self._steps >= _SILENT_STEPS:
                reason = (
                    f"has recorded nothing in {self._steps} steps: either no loss depends on it, or a module reads "
                    "its .weight instead of calling it"
                )
            else:
                continue
            self._reported.add(layer)
            yield f"{layer} is not trained: it {reason}"


def vanished_inputs(layers: Iterable[BinaryLayer], states: Mapping[Tensor, Mapping[str, Any]]) -> Iterator[str]:
    """One per layer whose Q̄ is zero although its weight has a gradient; reading that waits for the device."""
    for layer in layers:
        gram, grad = states.get(layer.weight, {}).get("gram"), layer.weight.grad
        if gram is not None and grad is not None and not gram.any() and local(grad).any():
            yield (
                f"{layer} has a gradient, but the moments of its inputs are zero, so that its direction ignores how "
                f"they are correlated: their squares vanish in {gram.dtype} (scale them up), or only zeros were sampled"
            )


class LeftBehind:
    """Finds parameters of the given model that have gradients, but that no optimiser changes.

    Their values are compared over the first few steps, so an optimiser beside this one need not be announced.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._first: dict[Tensor, tuple[int, Tensor]] = {}

    def messages(self, parameters: Mapping[Tensor, str], optimizer: str) -> Iterator[str]:
        """One if some of these parameters, with their names, are as they were at the first step."""
        self._steps += 1
        if self._steps == 1:
            self._first = {p: _state(p) for p in parameters if p.requires_grad and p.grad is not None}
        if self._steps != 1 + _PATIENCE:
            return
        left = [parameters[p] for p, first in self._first.items() if p in parameters and _is_still(p, first)]
        self._first = {}
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            yield (
                f"{optimizer} trains the binary weights alone, and nothing has changed {len(left)} other "
                f"trainable parameters since its first step: {', '.join(left[:_NAMED])}{more}; give it real=True or "
                "real=dict(lr=…) to train them too, real=False to leave them as they are"
            )


class Schedules:
    """Finds steps beyond the end of a schedule, and a scheduler that lowers a rate which `steps` lowers already."""

    def __init__(self) -> None:
        self._highest: dict[int, float] = {}
        self._doubled = self._ended = False

    def messages(self, groups: Iterable[Mapping[str, Any]], optimizer: str) -> Iterator[str]:
        """One per finding; a rate that only rises, as in a warm-up, is no second schedule."""
        for number, group in enumerate(groups):
            if group["steps"] is not None and group.get("step", 0) > group["steps"] and not self._ended:
                self._ended = True
                yield (
                    f"{optimizer} was made for steps={group['steps']}, after which its learning rate is zero: further "
                    "steps change nothing; give the number of steps of the whole training"
                )
            if self._doubled or group["steps"] is None or "initial_lr" not in group:  # schedulers write the latter
                continue
            rate = float(group["lr"])
            if rate < self._highest.setdefault(number, rate):
                self._doubled = True
                yield (
                    f"a scheduler lowers the learning rate, and so does steps={group['steps']}: the two multiply; "
                    "leave out steps, or the scheduler"
                )
            self._highest[number] = max(rate, self._highest[number])


class SignChanges:
    """Finds rates at which a run is hopeless: hardly any sign changes, or a third of them in one step.

    Some signs per layer are compared, in a few steps of a run, since reading them waits for the device.
    """

    def __init__(self) -> None:
        self._signs: list[Tensor] = []
        self._reported = False

    def messages(self, weights: Iterable[Tensor], *, step: int, steps: int | None) -> Iterator[str]:
        """One message if the rate is such a one."""
        middle = _LOOK if steps is None else max(_LOOK, steps // 2)
        if self._reported or step not in (1, 2, middle):
            return
        signs = [local(weight.detach()).reshape(-1)[:_SIGNS] >= 0 for weight in weights]
        if sum(map(len, signs)) < _ENOUGH:
            return
        if step == 1 or [one.shape for one in signs] != [one.shape for one in self._signs]:
            self._signs = signs  # a resumed run has no first step, and is not looked at
            return
        changed = [(new != old.to(new.device)).float().mean() for new, old in zip(signs, self._signs, strict=True)]
        part = torch.stack([one.to(changed[0].device) for one in changed]).mean().item()
        if step == 2 and part > _MANY:
            fault = f"{part:.0%} of the signs changed in one step: the learning rate is far too large"
        elif step == middle and part < _FEW:
            fault = f"after {step} steps only {part:.2%} of the signs have changed: the learning rate is too small"
        else:
            return
        self._reported = True
        yield (
            f"{fault}; leave lr out, pass the whole model so that its norms are seen, and give steps, the number of "
            "steps of the whole training; or try lr=0.03, relative=True and a third or three times of it"
        )


class StuckLoss:
    """Finds runs whose loss has not fallen by their middle; it knows only the losses that it is given."""

    def __init__(self) -> None:
        self._first: list[Tensor | float] = []
        self._last: deque[Tensor | float] = deque(maxlen=_LOSSES)

    def messages(self, loss: Tensor | float, *, step: int, steps: int | None) -> Iterator[str]:
        """One message if the loss has not fallen; losses on a GPU are read at that step alone."""
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        self._last.append(loss)
        if step <= _LOSSES:
            self._first.append(loss)
        if step != max(_LOOK, (steps or 0) // 2) or len(self._first) < _LOSSES:
            return  # a resumed run has no first losses, and is not looked at
        before, now = (statistics.fmean(map(float, losses)) for losses in (self._first, self._last))
        if not now < before:
            yield (
                f"after {step} steps the loss has not fallen: {now:.4g}, {before:.4g} at first; leave lr out, and see "
                "whether inputs have mean zero and whether the targets belong to them"
            )


def _state(parameter: Tensor) -> tuple[int, Tensor]:
    """A parameter's version, and some of its values for optimisers that write to `.data`, which has no version."""
    return parameter._version, local(parameter.detach()).reshape(-1)[:64].clone()


def _is_still(parameter: Tensor, first: tuple[int, Tensor]) -> bool:
    version, values = _state(parameter)
    return version == first[0] and values.device == first[1].device and torch.equal(values, first[1])
