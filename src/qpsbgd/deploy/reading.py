"""A torch model as operations; what they cannot express is refused with the layer's name and line."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

import qpsbgd.deploy.modules as kinds
from qpsbgd.deploy.encoders import ENCODERS
from qpsbgd.deploy.functions import BATCH, call_function
from qpsbgd.deploy.graph_builder import GraphBuilder
from qpsbgd.deploy.tracing import RefusedError, Traced, name_of, place, refusal, trace
from qpsbgd_runtime.operations import Operation, Shape

_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
"""Functions that change their first argument."""


def read(model: nn.Module, input_shape: Shape | None = None) -> tuple[Operation, ...]:
    """The operations that compute what the model computes in evaluation mode; the model itself stays as it is.

    Raises:
        ValueError: Something cannot be expressed, or holds numbers that are not finite; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module or a packed model, got {type(model).__name__}")
    builder = GraphBuilder(input_shape)
    if type(model) in ENCODERS:
        model = nn.Sequential(model)
    if isinstance(model, kinds.SUPPORTED):
        return builder.finished(builder.apply("the model", model, builder.input))
    if fx.Tracer().is_leaf_module(model, ""):
        raise kinds.unsupported("", model)
    return builder.finished(_followed(model, builder))


def _followed(model: nn.Module, builder: GraphBuilder) -> Any:
    """Follow the model's forward step by step; returns its result."""
    known: dict[fx.Node, Any] = {}

    def value_of(node: fx.Node) -> Any:
        return operator.attrgetter(str(node.target))(model).detach() if node.op == "get_attr" else known[node]

    def follow(node: fx.Node) -> Tensor | None:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
        try:
            constant = node.op == "get_attr"
            result = value_of(node) if constant else _result(node, args, kwargs, model=model, builder=builder)
            shape = builder.shape(result) if isinstance(result, Traced) else None
        except (TypeError, ValueError) as error:
            where = place()
            raise RefusedError(f"{error}{f' (in {where})' if where else ''}") from error
        if args and isinstance(result, Traced) and _changes_its_input(node, kwargs, model):
            for other in [key for key, value in known.items() if value is args[0]]:
                known[other] = result
        known[node] = result
        if isinstance(result, list):
            node.meta["parts"] = len(result)
        if not isinstance(result, Traced):
            return result if isinstance(result, Tensor) else None
        return None if shape is None else torch.empty(0, *shape)

    return known[trace(model, kinds.SUPPORTED, follow, ENCODERS)]


def _changes_its_input(node: fx.Node, kwargs: dict[str, Any], model: nn.Module) -> bool:
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.target in _IN_PLACE or (named.endswith("_") and not named.endswith("__"))
    return in_place or bool(kwargs.get("inplace"))


def _result(node: fx.Node, args: Any, kwargs: Any, *, model: nn.Module, builder: GraphBuilder) -> Any:
    name = name_of(node)
    if node.op == "placeholder":
        return builder.input
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if type(module) not in kinds.SUPPORTED:
            raise kinds.unsupported(name, module)
        if len(args) == 1 and isinstance(args[0], Tensor):
            with torch.no_grad():
                return module.forward(args[0])  # of a constant, such as positions
        if len(args) != 1 or kwargs or not isinstance(args[0], Traced):
            raise refusal(name, module, "must be called with one tensor")
        return builder.apply(name, module, args[0])
    target: Any = node.target
    given = tree_leaves((args, kwargs))
    if not any(isinstance(one, Traced) for one in given):
        return _constant(name, target, args, kwargs, batch=any(one is BATCH for one in given))
    return call_function(builder, name, target, args, kwargs)


def _constant(name: str, target: Any, args: Any, kwargs: Any, *, batch: bool) -> Any:
    """The result of a function of sizes and constants alone."""
    if batch and target in ("expand", "repeat") and isinstance(args[0], Tensor):
        sizes = (*args[1:], *kwargs.values())
        first, *rest = sizes[0] if isinstance(sizes[0], tuple | list) else sizes
        if first is BATCH and len(args[0]) == 1:
            return getattr(args[0], target)(1, *rest)  # the same for every sample
    if batch and target is not operator.getitem:
        raise ValueError(f"{name} computes with the size of the batch, which must stay free")
    with torch.no_grad():
        return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
