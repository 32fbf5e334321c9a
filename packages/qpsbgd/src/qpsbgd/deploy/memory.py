"""Which results of a model share memory in torch: changing one in place changes the others, or makes them unusable."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.deploy.modules import SKIPPED
from qpsbgd_runtime.operations import Shape

_SAME = ("detach", "dropout", "dropout1d", "dropout2d")  # functions that return their argument itself, in evaluation
_CASTS = ("contiguous", "float", "to", "type")
"""Functions that return their argument itself or a copy, which its layout and type decide."""
_VIEWS = (
    *("view", "reshape", "flatten", "unflatten", "transpose", "swapaxes", "permute", "squeeze", "unsqueeze"),
    *("getitem", "chunk", "split", "unbind"),
)
"""Functions whose results are views of their argument, or may be."""


class Result:
    """A value, after all changes in place, and what computed it; what is one tensor in torch is one `Result`."""

    def __init__(self, value: Any, name: str, shape: Shape | None) -> None:
        self.value, self.name = value, name
        self._shape = shape
        self._numbers: Any = None  # of its elements, within the memory; of a list, those of every part
        self._changes: list[tuple[str, Any]] = []  # in place: by what, and the elements; shared by all views
        self._seen = 0  # changes that the value includes

    def current(self) -> Any:
        """The value; raises ValueError where a change of another result may have changed it, too."""
        if not isinstance(self.value, list):
            for name, numbers in self._changes[self._seen :]:
                if _overlap(self.numbers, numbers):
                    raise ValueError(
                        f"{self.name} may share memory with what {name} changes in place, and is used afterwards; "
                        "write that as a new value: x = x + y instead of x += y, x.clone(), or inplace=False"
                    )
        return self.value

    @property
    def numbers(self) -> Any:
        """The numbers of a sample's elements in the memory (1, …), None where they are not known."""
        if self._numbers is None and self._shape is not None:
            self._numbers = torch.arange(math.prod(self._shape), dtype=torch.int32).reshape(1, *self._shape)
        return self._numbers

    def view(self, value: Any, name: str, function: Callable[[Any], Any]) -> Result:
        """A result that shares the memory; `function` of the numbers of this one's elements gives its own."""
        result = Result(value, name, None)
        numbers = self.numbers
        if isinstance(numbers, Tensor):
            numbers = numbers.contiguous()  # torch's own may be, whose layout is not known here
        result._numbers = None if numbers is None else function(numbers)
        result._changes, result._seen = self._changes, self._seen
        return result

    def change(self, value: Any, name: str) -> None:
        """Record that `name` overwrites the result with a value."""
        self._changes.append((name, self.numbers))
        self.value, self._seen = value, len(self._changes)


def alias_of(target: Any, source: Result, value: Any, name: str, rest: Sequence[Any], options: Any) -> Result | None:
    """The result of a function or module of `source` and other arguments, where it shares memory; None elsewhere."""
    called = target if isinstance(target, str) else getattr(target, "__name__", "")
    if isinstance(target, SKIPPED) or called in _SAME:
        return source
    if called in _CASTS:
        return source.view(value, name, lambda numbers: numbers)
    if isinstance(target, nn.Flatten | nn.Unflatten) or (called in _VIEWS and not _copies(target, source, rest)):
        function = getattr(Tensor, target) if isinstance(target, str) else target
        return source.view(value, name, lambda numbers: function(numbers, *rest, **options))
    return None


def _copies(target: Any, source: Result, rest: Sequence[Any]) -> bool:
    """Whether an index takes a copy: one with lists or tensors of numbers."""
    indices = rest[0] if rest and isinstance(rest[0], tuple) else rest
    listed = any(isinstance(index, list) or (isinstance(index, Tensor) and index.ndim) for index in indices)
    return target is operator.getitem and listed and not isinstance(source.value, list)


def _overlap(first: Tensor | None, second: Tensor | None) -> bool:
    return first is None or second is None or bool(torch.isin(first, second).any())
