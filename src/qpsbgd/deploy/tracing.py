"""A torch model as torch.fx sees it: its layers as they are, and everything between them as nodes of a graph."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from qpsbgd.nn.model_summary import evaluating
from qpsbgd_runtime.unit_operations import Steps

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(eq=False)
class Traced:
    """A result of the model. It becomes numbered values of the network when they are asked for, and not before.

    Attributes:
        name: The module that computes it.
        module: What is applied to `parent`, or the layer whose sums `sums` are; it waits for what follows.
        parent: What `module` is applied to.
        sums: The value with the sums of a layer, without gain and bias.
        real: The value in real numbers.
        small: The value in bits, or in whole numbers of up to 8 bits.
        steps: What such whole numbers count, or those that a layer with integer sums takes; None for bits.
    """

    name: str = ""
    module: nn.Module | None = None
    parent: Traced | None = None
    sums: int | None = None
    real: int | None = None
    small: int | None = None
    steps: Steps | None = None


def trace(model: nn.Module, leaves: tuple[type[nn.Module], ...]) -> fx.Graph:
    """The graph of what the model's forward does with its first argument, in evaluation mode.

    Args:
        model: The model, which stays as it is.
        leaves: Modules that become one node each; so do all of torch's own but nn.Sequential.

    Raises:
        ValueError: The forward cannot be followed; the message names the module and the line.
    """
    tracer = _Tracer(leaves)
    if tracer.is_leaf_module(model, ""):
        raise TypeError("a leaf has no graph of its own")
    given = list(inspect.signature(type(model).forward).parameters.values())[2:]
    defaults = {one.name: one.default for one in given if one.default is not inspect.Parameter.empty}
    with evaluating(model), tracer.naming("", model):
        return tracer.trace(model, defaults or None)


def place_of(node: fx.Node) -> str:
    """The file and line of the user's code that a node comes from, as in "net.py:12"; empty where it is not known."""
    inside = (node.stack_trace or "").rpartition(__file__)[2]
    found = [(name, line) for name, line in _FRAME.findall(inside) if not _is_own(name)]
    return f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""


def name_of(node: fx.Node) -> str:
    """The path of a node's module, or of the module whose forward has it, and the node's own name."""
    if node.op == "call_module":
        return str(node.target)
    return ".".join([*list(node.meta.get("nn_module_stack") or {})[-1:], node.name])


def refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    """The error about a module."""
    return ValueError(f"{name or 'the model'} ({type(module).__name__}) {reason}")


def _is_own(path: str) -> bool:
    return path.startswith(_OWN)


class _Proxy(fx.Proxy):
    """fx records `x += y` as `x = x + y`, which is another thing where x has a second name."""

    def _changed(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = functools.partialmethod(_changed, operator.iadd)
    __isub__ = functools.partialmethod(_changed, operator.isub)
    __imul__ = functools.partialmethod(_changed, operator.imul)
    __itruediv__ = functools.partialmethod(_changed, operator.itruediv)


class _Tracer(fx.Tracer):
    record_stack_traces = True
    proxy_buffer_attributes = True

    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self._leaves = leaves

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.naming(self.path_of_module(m), m):
            return super().call_module(m, forward, args, kwargs)

    @contextlib.contextmanager
    def naming(self, name: str, module: nn.Module) -> Iterator[None]:
        """Errors within name the module, and the line that cannot be followed."""
        if module._forward_hooks or module._forward_pre_hooks:
            raise refusal(name, module, "has forward hooks, which cannot be expressed; remove them")
        try:
            yield
        except _UntracedError:
            raise
        except Exception as error:
            frames = [one for one in traceback.extract_tb(error.__traceback__) if not _is_own(one.filename)]
            line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            advice = "a deployed forward must do the same for every input, and take sizes from x.shape, not from len(x)"
            text = str(refusal(name, module, f"could not be traced{line} ({error}); {advice}"))
            raise _UntracedError(text) from error


class _UntracedError(ValueError):
    pass


def constant(model: nn.Module, target: str) -> torch.Tensor:
    """The parameter or buffer that a node names."""
    found = operator.attrgetter(target)(model)
    if not isinstance(found, torch.Tensor):
        raise ValueError(f"{target} must be a tensor, got {type(found).__name__}")
    return found.detach()
