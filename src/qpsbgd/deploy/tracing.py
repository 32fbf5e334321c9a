"""A torch model as torch.fx sees it: its layers as they are, and everything between them as nodes of a graph."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from qpsbgd.nn.layers import BinaryLayer
from qpsbgd.nn.model_summary import evaluating
from qpsbgd_runtime.unit_operations import Steps

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class RefusedError(ValueError):
    """Something that cannot be expressed; the message names it."""


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


Follow = Callable[[fx.Node], "torch.Tensor | None"]
"""What is done with every node as soon as it is recorded; gives what tells the shape of its result, where it is known.
Of a result of the model it has no samples (0, …)."""


WrittenOut = Mapping[type[nn.Module], Callable[..., Any]]
"""What is traced in place of the forward of modules of these types: functions of the module and its arguments."""


def trace(model: nn.Module, leaves: tuple[type[nn.Module], ...], follow: Follow, written_out: WrittenOut) -> fx.Node:
    """The node that the model's forward returns for its first argument, in evaluation mode; the model stays as it is.

    Leaves, binary layers and all modules of torch's own but containers and those in `written_out` become one node each.

    Raises:
        ValueError: The forward cannot be followed; the message names the module and the line.
    """
    tracer = _Tracer(leaves, follow, written_out)
    before = set(vars(model))
    try:
        with evaluating(model), tracer.naming("", model):
            tracer.trace(model)
    finally:
        for name in set(vars(model)) - before:  # constants, which fx hangs onto the model
            delattr(model, name)
    return tracer.returned


def place() -> str:
    """The file and line of the user's code that is being traced, as in "net.py:12"; empty where it is not known."""
    frames = traceback.extract_stack()
    start = next(at for at, frame in enumerate(frames) if frame.filename == __file__)
    return _users_line(frames[start:])


def name_of(node: fx.Node) -> str:
    """The path of a node's module, or of the module whose forward has it, and the node's own name."""
    if node.op == "call_module":
        return str(node.target)
    return ".".join([*list(node.meta.get("nn_module_stack") or {})[-1:], node.name])


def refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    """The error about a module."""
    return ValueError(f"{name or 'the model'} ({type(module).__name__}) {reason}")


def _users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    found = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}" if found else ""


class _Proxy(fx.Proxy):
    """A result that knows its shape, where the shape of a sample was given; the size of the batch stays free."""

    def __getattr__(self, name: str) -> Any:
        like = self.node.meta.get("like")
        if like is None or name not in ("shape", "ndim", "dtype", "device", "is_cuda", "is_nested", "requires_grad"):
            return super().__getattr__(name)
        return self.size() if name == "shape" else getattr(like, name)

    def size(self, dim: int | None = None) -> Any:
        like = self.node.meta.get("like")
        if like is None or dim == 0:
            return self.tracer.create_proxy("call_method", "size", (self, *(() if dim is None else (dim,))), {})
        sizes = (self.size(0), *like.shape[1:])
        return sizes if dim is None else sizes[dim]

    def __iter__(self) -> Iterator[Any]:
        parts: int | None = self.node.meta.get("parts")
        if parts is None:
            return super().__iter__()
        return (self.tracer.create_proxy("call_function", operator.getitem, (self, at), {}) for at in range(parts))

    def dim(self) -> Any:
        like = self.node.meta.get("like")
        return self.tracer.create_proxy("call_method", "dim", (self,), {}) if like is None else like.ndim

    # fx records `x += y` as `x = x + y`, which is another thing where x has a second name.
    def _changed(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = functools.partialmethod(_changed, operator.iadd)
    __isub__ = functools.partialmethod(_changed, operator.isub)
    __imul__ = functools.partialmethod(_changed, operator.imul)
    __itruediv__ = functools.partialmethod(_changed, operator.itruediv)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, leaves: tuple[type[nn.Module], ...], follow: Follow, written_out: WrittenOut) -> None:
        super().__init__()
        self._leaves, self._follow, self._written_out = leaves, follow, written_out
        self._following = False
        self.returned: fx.Node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        made = super().create_proxy(*args, **kwargs)
        self._following = True  # modules are what they are meanwhile, and not traced
        try:
            made.node.meta["like"] = self._follow(made.node)
        finally:
            self._following = False
        return made

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._following else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """The forward as a function of its first argument alone; the others have their defaults."""
        first, *others = list(inspect.signature(root_fn).parameters.values())[1:]
        needed = [one.name for one in others if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        if needed:
            raise RefusedError(
                f"the model must take one input, but it takes {', '.join(needed)}, too; deploy a module whose forward "
                f"takes one: def forward(self, x): return self.model(x, {needed[0]}=self.{needed[0]})"
            )

        def forward(root: nn.Module, value: fx.Proxy) -> fx.Proxy:
            found = root_fn(root, value)
            if not isinstance(found, fx.Proxy):
                raise RefusedError(_several(found))
            self.returned = found.node
            return found

        return forward, [self.root, self.create_proxy("placeholder", first.name, (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) in self._written_out:
            return False
        return type(m) in self._leaves or isinstance(m, BinaryLayer) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._following:
            return forward(*args, **kwargs)
        if type(m) in self._written_out and "forward" not in vars(m):
            forward = functools.partial(self._written_out[type(m)], m)
        with self.naming(self.path_of_module(m), m):
            return super().call_module(m, forward, args, kwargs)

    @contextlib.contextmanager
    def naming(self, name: str, module: nn.Module) -> Iterator[None]:
        """Errors within name the module, and the line that cannot be followed."""
        if module._forward_hooks or module._forward_pre_hooks:
            raise refusal(name, module, "has forward hooks, which cannot be expressed; remove them")
        try:
            yield
        except RefusedError:
            raise
        except Exception as error:
            line = _users_line(traceback.extract_tb(error.__traceback__))
            advice = "a deployed forward must do the same for every input, and take sizes from x.shape, not from len(x)"
            text = str(refusal(name, module, f"could not be traced{f' at {line}' if line else ''} ({error}); {advice}"))
            raise RefusedError(text) from error


def _several(found: Any) -> str:
    """The message about a result that is not one tensor."""
    part = "[0]"
    if isinstance(found, Mapping):
        part = f".{next(iter(found))}" if hasattr(found, next(iter(found), "")) else f"[{next(iter(found), '')!r}]"
    return (
        f"the model must return one tensor, got {type(found).__name__}; deploy a module whose forward returns one: "
        f"def forward(self, x): return self.model(x){part}"
    )
