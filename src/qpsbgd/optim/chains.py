"""How many norms follow each other in a network without a shortcut past them, read off its forward pass."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from qpsbgd.nn import BinaryLayer, BinaryLinear

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_SIZES = ("size", "dim", "len", "shape", "ndim", "dtype", "device")
"""What is asked of a result without its values."""


def is_norm(module: nn.Module) -> bool:
    """Whether a module without parts is a norm, also of another library: they all say so in their names."""
    return "norm" in type(module).__name__.lower() and not any(module.children())


def over_batches(norm: nn.Module) -> bool:
    """Whether a norm takes its statistics over the rows of a batch."""
    return "batch" in type(norm).__name__.lower()


def chained_norms(module: nn.Module) -> int:
    """The most norms in a row, each after a trained dense binary layer, that every path through the module passes.

    Norms over batches, convolutions and sums end a row. The forward pass runs once, on symbols, with a copy of the
    module tree that has no hooks; where it cannot, because it depends on values or takes more inputs, its parts are
    looked at one by one.
    """
    norms = sum(is_norm(part) and not over_batches(part) for part in module.modules())
    if min(norms, sum(map(_trained_dense, module.modules()))) < 2:
        return 0
    if not _opaque(module):
        with suppress(Exception):  # whatever other people's code does with a symbol
            return _longest_row(_traced(module))
    return max(map(chained_norms, module.children()), default=0)


def _traced(module: nn.Module) -> list[Node]:
    """The results of a forward pass with one input, in order: the input first, what is returned last."""
    tracer = _Tracer(Graph())
    found = _bare(module, {})(tracer.create_proxy("placeholder", "x", (), {}))
    tracer.create_proxy("call_function", tuple, (found,), {})
    return list(tracer.graph.nodes)


class _Tracer(GraphAppendingTracer):
    """Records which results are made of which; constants do not matter."""

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(a) if isinstance(a, Proxy | tuple | list | dict | slice | str) else None


class _Leaf(nn.Module):
    """Stands for a module without parts, or for one of torch's own: one node of the graph."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not as a part

    def forward(self, *args: Any, **kwargs: Any) -> Proxy:
        tracer = next(a.tracer for a in (*args, *kwargs.values()) if isinstance(a, Proxy))
        made: Proxy = tracer.create_proxy("call_module", "leaf", args, kwargs)
        made.node.meta["module"] = self.module
        return made


def _bare(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """A copy of a module and its parts, without hooks and with leaves in place of layers; values are shared."""
    if module not in made and (_opaque(module) or isinstance(module, BinaryLayer) or not any(module.children())):
        made[module] = _Leaf(module)
    if module not in made:
        copy = made[module] = object.__new__(type(module))
        for name, value in vars(module).items():
            if name not in ("forward", "_compiled_call_impl"):  # set by wrappers; the class has its own
                kept = value.copy() if isinstance(value, list | dict | set) else value
                copy.__dict__[name] = {} if name.endswith("_hooks") else kept
        copy.__dict__["_modules"] = {name: part and _bare(part, made) for name, part in module._modules.items()}
    return made[module]


def _opaque(module: nn.Module) -> bool:
    """Whether a module is one of torch's own that is not to be looked into, whatever shards or wraps it."""
    forward = type(module).forward
    return forward.__module__.startswith("torch.") and not isinstance(module, _CONTAINERS)


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
