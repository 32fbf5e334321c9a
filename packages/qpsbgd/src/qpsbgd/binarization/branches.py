"""Residual branches: from a layer, through batch norms in evaluation mode, dropout and identities, to a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

LEAST_SCALE = 1e-3  # channels that a norm scales down below this share of the largest make up for nothing


@dataclass(frozen=True)
class Branch:
    """A layer's output on its way to a sum: a tensor that has not changed since, and the norms that it went through."""

    layer: nn.Module
    output: Tensor
    version: int
    norms: tuple[_BatchNorm, ...] = ()

    def through(self, module: nn.Module, output: Tensor) -> Branch:
        """The branch after one more module."""
        norms = (*self.norms, module) if isinstance(module, _BatchNorm) else self.norms
        return Branch(self.layer, output, output._version, norms)

    def before_norms(self, error: Tensor) -> Tensor:
        """The change of the layer's output that changes the sum by `error`."""
        if not self.norms:
            return error
        scale = torch.ones(())
        for norm in self.norms:
            assert norm.running_var is not None
            factor = (norm.running_var + norm.eps).rsqrt()
            scale = scale * (factor if norm.weight is None else factor * norm.weight.detach())
        small = scale.abs() < LEAST_SCALE * scale.abs().amax()
        factor = torch.where(small, 0.0, 1 / torch.where(small, 1.0, scale))
        return error * factor.reshape(-1, *(1,) * (error.ndim - 2))


class Sums(TorchFunctionMode):
    """While entered, calls `report(branch, other)`, which may raise, before a branch is added to a tensor like it."""

    def __init__(self, report: Callable[[Branch, Tensor], None]) -> None:
        super().__init__()
        self._report = report
        self._branches: dict[int, Branch] = {}

    def begin(self, layer: nn.Module, output: Any) -> None:
        """A layer has given an output."""
        if isinstance(output, Tensor):
            self._branches[id(output)] = Branch(layer, output, output._version)

    def follow(self, module: nn.Module, args: Sequence[Any], output: Any) -> bool:
        """Some module has been called: whether a branch goes on, through a norm or what changes nothing."""
        branch = self._branch(args[0]) if args else None
        fixed = isinstance(module, _BatchNorm) and module.running_var is not None and not module.training
        if branch is None or not (fixed or isinstance(module, _DropoutNd | nn.Identity)):
            return False
        self._branches[id(output)] = branch.through(module, output)
        return True

    def _branch(self, value: Any) -> Branch | None:
        branch = self._branches.get(id(value)) if isinstance(value, Tensor) else None
        return branch if branch is not None and value._version == branch.version else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("add", "add_", "__add__", "__radd__", "__iadd__") and not kwargs:
            for term, other in (args[:2], args[1::-1]):
                branch = self._branch(term)
                if branch is not None and isinstance(other, Tensor) and other.shape == term.shape:
                    self._report(branch, other)
        return func(*args, **(kwargs or {}))
