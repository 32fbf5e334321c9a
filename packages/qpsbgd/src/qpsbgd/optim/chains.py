"""How many norms follow each other in a network without a shortcut past them, read off its forward pass."""

from __future__ import annotations

import operator
import random
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.overrides import TorchFunctionMode

from qpsbgd.nn import BinaryLayer, BinaryLinear
from qpsbgd.nn.conversion import is_norm

_CONTAINERS = (nn.Sequential.forward, nn.Module.forward)
"""What modules do that only hold others."""
_SIZES = ("size", "dim", "len", "shape", "ndim", "dtype", "device")
"""What is asked of a result without its values."""
_IN_PLACE = {name for name in dir(operator) if name.startswith("__i")} - {"__index__", "__inv__", "__invert__"}
_IN_PLACE |= {"__set__", "__setitem__"}
MOST_NODES = 20_000
"""Results after which a forward pass is taken not to end; 500 layers with norms and activations have 1,500."""


def over_batches(norm: nn.Module) -> bool:
    """Whether a norm takes its statistics over the rows of a batch."""
    return "batch" in type(norm).__name__.lower()


def chained_norms(module: nn.Module) -> int:
    """The most norms in a row, each after a trained dense binary layer, that every path through the module passes.

    Norms over batches, convolutions and sums end a row. The forward pass runs once, on symbols, with a copy of the
    module tree that has no hooks; where it cannot, because it depends on values, changes tensors in place or takes more
    inputs, its parts are looked at one by one.
    """
    norms = sum(is_norm(part) and not over_batches(part) for part in module.modules())
    if min(norms, sum(map(_trained_dense, module.modules()))) < 2:
        return 0
    with suppress(Exception):  # whatever other people's code does with a symbol
        return _longest_row(_traced(module))
    return max(map(chained_norms, module.children()), default=0)


def _traced(module: nn.Module) -> list[Node]:
    """The results of a forward pass with one input, in order: the input first, what is returned last."""
    tracer = _Tracer(Graph())
    copy, state = _bare(module, {}), random.getstate()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()), torch.random.fork_rng(devices=[]), _NothingInPlace():
            found = copy(tracer.create_proxy("placeholder", "x", (), {}))
    finally:
        random.setstate(state)
    tracer.create_proxy("call_function", tuple, (found,), {})
    return list(tracer.graph.nodes)


class _NothingInPlace(TorchFunctionMode):
    """Refuses to change values, which the copy shares with the model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        if in_place and args and isinstance(args[0], torch.Tensor):
            raise TypeError(f"{name} would change a tensor")
        return func(*args, **(kwargs or {}))


class _Tracer(GraphAppendingTracer):
    """Records which results are made of which; constants do not matter."""

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        if len(self.graph.nodes) >= MOST_NODES:
            raise RuntimeError("the forward pass does not end")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(a) if isinstance(a, Proxy | tuple | list | dict | slice | str) else None


class _Leaf(nn.Module):
    """Stands for a module without parts, or for one of torch's own: one node of the graph."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not as a part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def forward(self, *args: Any, **kwargs: Any) -> Proxy:
        tracer = next(a.tracer for a in (*args, *kwargs.values()) if isinstance(a, Proxy))
        made: Proxy = tracer.create_proxy("call_module", "leaf", args, kwargs)
        made.node.meta["module"] = self.module
        return made


def _bare(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """A copy of a module and its parts, without hooks and with leaves in place of layers; values are shared."""
    wrapped = module._modules.get("_orig_mod") or module._modules.get("module")  # of torch.compile, of DDP
    if wrapped is not None and type(module).__module__.startswith("torch."):
        return _bare(wrapped, made)
    if module not in made and (_opaque(module) or isinstance(module, BinaryLayer) or not any(module.children())):
        made[module] = _Leaf(module)
    if module not in made:
        copy = made[module] = object.__new__(type(module))
        for name, value in vars(module).items():
            if name not in ("forward", "_compiled_call_impl"):  # set by wrappers; the class has its own
                copy.__dict__[name] = {} if name.endswith("_hooks") else _copied(value)
        copy.__dict__["_modules"] = {name: part and _bare(part, made) for name, part in module._modules.items()}
    return made[module]


def _copied(value: Any) -> Any:
    """A copy of lists and dictionaries, to which a forward pass may add symbols."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return set(value) if isinstance(value, set) else value


def _opaque(module: nn.Module) -> bool:
    """Whether a module is not to be looked into: one of torch's own, or one that does something when it goes."""
    forward = type(module).forward
    own = (getattr(forward, "__module__", None) or "").startswith("torch.")
    return (own and forward not in _CONTAINERS) or hasattr(type(module), "__del__")


def _trained_dense(module: nn.Module | None) -> bool:
    return isinstance(module, BinaryLinear) and module.weight.requires_grad


def _longest_row(nodes: list[Node]) -> int:
    """Goes through the results that every path passes, in order: no earlier one is used later."""
    values = {nodes[0]}
    last_use, longest, row, after_layer = 0, 0, 0, False
    at = {node: k for k, node in enumerate(nodes)}
    for node in nodes:
        if node is not nodes[0] and (_is_size(node) or values.isdisjoint(node.all_input_nodes)):
            continue
        values.add(node)
        passed_by = last_use > at[node]
        last_use = max([last_use, *(at[user] for user in node.users if not _is_size(user))])
        if passed_by:
            continue
        module = node.meta.get("module")
        if _trained_dense(module):
            after_layer = True
        elif module is not None and is_norm(module) and not over_batches(module):
            row, after_layer = row + after_layer, False
            longest = max(longest, row)
        elif len(values.intersection(node.all_input_nodes)) > 1 or _ends_row(module):
            row, after_layer = 0, False
    return longest


def _ends_row(module: nn.Module | None) -> bool:
    convolution = isinstance(module, BinaryLayer) and not isinstance(module, BinaryLinear)
    return module is not None and (convolution or is_norm(module) or any(module.children()))


def _is_size(node: Node) -> bool:
    asked = node.args[1] if node.target is getattr else getattr(node.target, "__name__", node.target)
    return asked in _SIZES
