"""Which results of a model share memory in torch: changing one in place changes the others, or makes them unusable."""

from __future__ import annotations

from typing import Any

from torch import nn

from qpsbgd.deploy.modules import SKIPPED

_SAME = ("detach", "dropout", "dropout1d", "dropout2d")  # functions that return their argument itself, in evaluation
_VIEWS = (
    *("contiguous", "float", "to", "type"),
    *("view", "reshape", "flatten", "unflatten", "transpose", "swapaxes", "permute", "squeeze", "unsqueeze"),
    *("getitem", "chunk", "split", "unbind"),
)
"""Functions whose results are views of their argument, or may be."""


class Result:
    """A value, after all changes in place, and what computed it; what is one tensor in torch is one `Result`."""

    def __init__(self, value: Any, name: str) -> None:
        self.value, self.name = value, name
        self._changes: list[str] = []  # what has changed the memory in place; shared by all views of it
        self._seen = 0  # changes that the value includes

    def current(self) -> Any:
        """The value; raises ValueError where a change of another result may have changed it, too."""
        if self._changes[self._seen :] and not isinstance(self.value, list):
            raise ValueError(
                f"{self.name} may share memory with what {self._changes[-1]} changes in place, and is used afterwards; "
                "write that as a new value: x = x + y instead of x += y, x.clone(), or inplace=False"
            )
        return self.value

    def view(self, value: Any, name: str) -> Result:
        """A result that shares the memory."""
        result = Result(value, name)
        result._changes, result._seen = self._changes, self._seen
        return result

    def change(self, value: Any, name: str) -> None:
        """Record that `name` overwrites the result with a value."""
        self._changes.append(name)
        self.value, self._seen = value, len(self._changes)


def result_of(target: Any, source: Result, value: Any, name: str) -> Result:
    """The result of a function or module of `source`, which may be its memory or a part of it."""
    called = target if isinstance(target, str) else getattr(target, "__name__", "")
    if isinstance(target, SKIPPED) or called in _SAME:
        return source
    return (
        source.view(value, name)
        if isinstance(target, nn.Flatten | nn.Unflatten) or called in _VIEWS
        else Result(value, name)
    )
