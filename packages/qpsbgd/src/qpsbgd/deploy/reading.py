"""A torch model as operations, by torch.fx: its layers as they are, and everything between them by function."""

import contextlib
import functools
import inspect
import operator
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

import qpsbgd.deploy.modules as kinds
from qpsbgd.deploy.functions import BATCH, call_function
from qpsbgd.deploy.graph_builder import GraphBuilder, Traced
from qpsbgd.deploy.memory import Result, result_of
from qpsbgd.deploy.modules import refusal, works_in_place
from qpsbgd.nn.contexts import evaluation_mode, temporary_attributes
from qpsbgd.nn.layers import BinaryLayer
from qpsbgd_runtime.operations import Operation, Shape

_ENCODERS = (nn.TransformerEncoderLayer, nn.TransformerEncoder)  # modules of torch's own that are traced

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class RefusedError(ValueError):
    """Something that cannot be expressed; the message names it."""


def read(model: nn.Module, input_shape: Shape | None = None) -> tuple[Operation, ...]:
    """The operations that compute what the model computes in evaluation mode; the model itself stays as it is."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module or a packed model, got {type(model).__name__}")
    builder = GraphBuilder(input_shape, kinds.REAL_TYPES | {p.dtype for p in model.parameters()})
    tracer = _Tracer(builder)
    if type(model) in _ENCODERS:
        model = nn.Sequential(model)
    elif tracer.is_leaf_module(model, ""):
        model = nn.Sequential(OrderedDict({"the model": model}))
    before = set(vars(model))
    try:
        with evaluation_mode(model), tracer.naming("", model):
            tracer.trace(model)
    finally:
        for name in set(vars(model)) - before:  # constants, which fx hangs onto the model
            delattr(model, name)
    return builder.finish(tracer.result)


class _Proxy(fx.Proxy):
    """A result that knows its shape, where the shape of a sample was given; the size of the batch stays free."""

    def __getattr__(self, name: str) -> Any:
        like = self.node.meta.get("like")
        if like is not None and name in ("shape", "size"):
            sizes = (super().__getattr__("size")(0), *like.shape[1:])
            return sizes if name == "shape" else lambda dim=None: sizes if dim is None else sizes[dim]
        known = like is not None and name in ("dim", "ndim", "dtype", "device", "is_cuda", "is_nested", "requires_grad")
        return getattr(like, name) if known else super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        parts: int | None = self.node.meta.get("parts")
        if parts is None:
            return super().__iter__()
        return (self.tracer.create_proxy("call_function", operator.getitem, (self, at), {}) for at in range(parts))

    # fx records `x += y` as `x = x + y`, which is another thing where x has a second name.
    def _change_in_place(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = functools.partialmethod(_change_in_place, operator.iadd)
    __isub__ = functools.partialmethod(_change_in_place, operator.isub)
    __imul__ = functools.partialmethod(_change_in_place, operator.imul)
    __itruediv__ = functools.partialmethod(_change_in_place, operator.itruediv)
    __ipow__ = functools.partialmethod(_change_in_place, operator.ipow)


class _Tracer(fx.Tracer):
    """Adds every node to a graph as soon as it is recorded; leaves are torch's modules, but containers and encoders."""

    proxy_buffer_attributes = True

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__()
        self.result: Any = None  # what the model returns
        self._builder = builder
        self._results: dict[fx.Node, Result] = {}
        self._following = False

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        made = super().create_proxy(*args, **kwargs)
        with temporary_attributes([self], _following=True):  # modules are what they are meanwhile, and not traced
            self._follow(made.node)
        return made

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._following else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """The forward as a function of its first argument alone; the others have their defaults."""
        first, *others = list(inspect.signature(root_fn).parameters.values())[1:]
        needed = [
            parameter.name
            for parameter in others
            if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        if needed:
            raise RefusedError(
                f"the model must take one input, but it takes {', '.join(needed)}, too; deploy a module whose forward "
                f"takes one: def forward(self, x): return self.model(x, {needed[0]}=self.{needed[0]})"
            )

        def forward(root: nn.Module, value: fx.Proxy) -> fx.Proxy:
            result = root_fn(root, value)
            if not isinstance(result, fx.Proxy):
                raise RefusedError(_several(result))
            try:
                self.result = self._value(result.node)
            except ValueError as error:
                raise RefusedError(str(error)) from error
            return result

        return forward, [self.root, self.create_proxy("placeholder", first.name, (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = type(m) in kinds.SUPPORTED or isinstance(m, BinaryLayer)
        return leaf or (super().is_leaf_module(m, module_qualified_name) and type(m) not in _ENCODERS)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._following:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if type(m) in _ENCODERS:
            _check_encoder(m, *args[1:], *kwargs.values())
            if self._builder.shape(self._builder.input) is None:
                raise RefusedError(f"{name} depends on the shape of a sample: give input_shape, such as (16, 64)")
        with self.naming(name, m):
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

    def _value(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root).detach()
        return self._results[node].current()

    def _follow(self, node: fx.Node) -> None:
        """Compute a node; one whose shape is known gets a tensor like its result, without samples (0, …)."""
        try:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._value)
            if changes := self._changes_its_input(node, args, kwargs):
                self._check_change(node, args)
            result = self._value(node) if node.op == "get_attr" else self._compute(node, args, kwargs)
            shape = self._builder.shape(result) if isinstance(result, Traced) else None
            self._remember(node, result, changes=changes)
        except (TypeError, ValueError) as error:
            frames = traceback.extract_stack()
            start = next(at for at, frame in enumerate(frames) if frame.filename == __file__)
            where = _users_line(frames[start:])
            raise RefusedError(f"{error}{f' (in {where})' if where else ''}") from error
        if isinstance(result, list):
            node.meta["parts"] = len(result)
        if isinstance(result, Tensor) or shape is not None:
            node.meta["like"] = result if shape is None else torch.empty(0, *shape)

    def _remember(self, node: fx.Node, value: Any, *, changes: bool) -> None:
        """Keep the result of a node, which may be the memory of its first argument or a part of it."""
        source = self._results.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        name = self._name(node)
        if source is None or not isinstance(source.value, Traced | list):
            self._results[node] = Result(value, name)
        elif changes:
            source.change(value, name)
            self._results[node] = source
        else:
            target = self.root.get_submodule(str(node.target)) if node.op == "call_module" else node.target
            self._results[node] = result_of(target, source, value, name)

    def _changes_its_input(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> bool:
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return bool(getattr(module, "inplace", False)) and not isinstance(module, kinds.SKIPPED)
        return node.op != "get_attr" and works_in_place(node.target, args[1:], kwargs)

    def _check_change(self, node: fx.Node, args: Any) -> None:
        """Refuse changes in place of the model's own tensors, and of constants by values of the network."""
        if not isinstance(args[0], Tensor):
            return
        kept = {tensor.untyped_storage().data_ptr() for tensor in (*self.root.parameters(), *self.root.buffers())}
        if args[0].untyped_storage().data_ptr() in kept or any(isinstance(leaf, Traced) for leaf in tree_leaves(args)):
            raise ValueError(f"{self._name(node)} changes a constant in place; write it as a new value")

    def _name(self, node: fx.Node) -> str:
        return ".".join([*list(node.meta.get("nn_module_stack") or {})[-1:], node.name])  # in the module with the call

    def _compute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node.op == "placeholder":
            return self._builder.input
        if node.op == "call_module":
            module = self.root.get_submodule(target)
            if type(module) not in kinds.SUPPORTED:
                raise kinds.unsupported_error(target, module)
            if len(args) == 1 and isinstance(args[0], Tensor):
                with torch.no_grad():
                    return module.forward(args[0])  # of a constant, such as positions
            if len(args) != 1 or kwargs or not isinstance(args[0], Traced):
                raise refusal(target, module, "must be called with one tensor")
            return self._builder.apply(target, module, args[0])
        name = self._name(node)
        given = tree_leaves((args, kwargs))
        if not any(isinstance(leaf, Traced) for leaf in given):
            return _constant(name, target, args, kwargs, batch=any(leaf is BATCH for leaf in given))
        return call_function(self._builder, name, target, args, kwargs)


def _users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """The file and line of the user's code, as in "net.py:12"; empty where it is not known."""
    users = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}" if users else ""


def _several(result: Any) -> str:
    """The message about a result that is not one tensor."""
    part = "[0]"
    if isinstance(result, Mapping):
        part = f".{next(iter(result))}" if hasattr(result, next(iter(result), "")) else f"[{next(iter(result), '')!r}]"
    return (
        f"the model must return one tensor, got {type(result).__name__}; deploy a module whose forward returns one: "
        f"def forward(self, x): return self.model(x){part}"
    )


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


def _check_encoder(encoder: nn.Module, *masks: Any) -> None:
    """Refuse what would not be torch's own encoder, or its layer, without masks."""
    if any(mask is not None and mask is not False for mask in masks):
        raise RefusedError(
            "masks of a TransformerEncoder cannot be deployed; call it with its input only, or write its layers with "
            "F.scaled_dot_product_attention"
        )
    if {"_sa_block", "_ff_block"} & set(vars(encoder)):
        raise RefusedError("a TransformerEncoderLayer with blocks of its own cannot be deployed; subclass it instead")
    if isinstance(encoder, nn.TransformerEncoderLayer) and not encoder.self_attn.batch_first:
        raise RefusedError("a TransformerEncoderLayer must take the batch first: build it with batch_first=True")
