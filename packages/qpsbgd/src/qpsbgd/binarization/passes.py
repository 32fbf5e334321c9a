"""Forward passes of the calibration batches through a model whose layers change one after the other.

A pass ends where the next layer is called. What was computed before it is final, so that the outputs of modules that
have ended, and of attention inside others, are kept and the next pass begins with them: all layers together cost about
one forward pass, and another one to count how often modules are called.

Passes through the float network give the outputs t that a layer should have in a partly binary network:

    minimise Σᵢ (tᵢ − ŵᵀ x̂ᵢ)²,   t = wᵀ x + (r − r̂) / d

x and x̂ are the layer's inputs in the float network and in the binary one. Where its output, times the scale d of a norm
after it, is added to another term, r and r̂ are that term in both: so errors do not add up along residual branches.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from qpsbgd.binarization.branches import Branch, Sums
from qpsbgd.binarization.selected_rows import SelectedRows, Selection
from qpsbgd.nn.contexts import temporary_attributes
from qpsbgd.nn.conversion import is_converted
from qpsbgd.nn.experts import ExpertLayers

MOST_KEPT = 4 * 2**30  # bytes of outputs that are kept at most; what is beyond is computed again
WHOLE = -1


class _Reached(BaseException):
    """Ends a pass; not an Exception, so that no model catches it."""


class LayerCall(NamedTuple):
    """A layer in a pass: its input, and if its output is added to something, that branch and the other term.

    Where it belongs to an expert, `tokens` is a mask of those that its rows are of.
    """

    x: Tensor
    branch: Branch | None
    other: Tensor | None
    tokens: Tensor | None = None
    selection: Selection = frozenset()


class _Functions(TorchFunctionMode):
    """While it is entered, torch's functions are computed by `compute(function, args, kwargs)`."""

    def __init__(self, compute: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._compute(func, args, kwargs or {})


class Passes:
    """The passes of some batches, as `arguments` gives them, through a model in evaluation mode.

    Attributes:
        unclear: Modules whose weights a pass also reads elsewhere, or that batches call in different orders.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self._model, self.batches = model, batches
        # By module and, for attention inside it, the number of that call; WHOLE for the module's own output.
        self._outputs: list[dict[tuple[nn.Module, int], Any]] = [{} for _ in batches]
        self._inside: tuple[nn.Module, Iterator[int]] = (model, itertools.count())
        self._kept_bytes, self._batch = 0, -1
        self._target: nn.Module | None = None
        self._input: Tensor | None = None
        self._inputs: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._selected, self._selection = SelectedRows(), Selection()
        self.unclear: set[nn.Module] = set()
        self._once: set[nn.Module] = set()
        self._summed: set[nn.Module] = set()
        self._beyond: Sums | None = None
        self._originals: dict[nn.Module, Any] = {}

    def calls(self) -> Counter[nn.Module]:
        """How often the pass of a batch calls each module, at most, in the order of the first calls.

        A call counts twice if a pass also reads the module's weight elsewhere, or calls the module before others that
        come first in the passes of other batches.
        """
        order, most = list[nn.Module](), Counter[nn.Module]()
        for number in range(len(self.batches)):
            calls, place = self._calls(number), 0
            for module in calls:
                if module not in most:
                    order.insert(place, module)
                elif order.index(module) < place:
                    calls[module] += 1
                    self.unclear.add(module)
                place = max(place, order.index(module) + 1)
            most |= calls
        self._once = {module for module in order if most[module] == 1}
        return Counter({module: most[module] for module in order})

    def _calls(self, number: int) -> Counter[nn.Module]:
        """The same for one batch."""
        calls: Counter[nn.Module] = Counter()
        running: list[nn.Module] = []
        read: set[nn.Module] = set()
        owners = {module._parameters.get("weight"): module for module in self._model.modules() if is_converted(module)}

        def count(module: nn.Module, *_: Any) -> None:
            calls[module] += 1
            running.append(module)

        def compute(function: Any, args: Any, kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if isinstance(result, Tensor) and not function.__name__.startswith("new_"):  # not its type and device alone
                parameters = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, nn.Parameter)]
                read.update({owners[weight] for weight in parameters if weight in owners} - {*running})
            return result

        def after(module: nn.Module, args: Any, output: Any) -> None:
            running.pop()
            if not sums.follow(module, args, output) and not list(module.children()):
                sums.begin(module, output)

        sums = Sums(lambda branch, _: self._summed.add(branch.layer))
        with ExitStack() as hooks, sums, _Functions(compute), self._every_expert():
            for module in self._model.modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    hooks.enter_context(module.register_forward_pre_hook(count))
                    hooks.enter_context(module.register_forward_hook(after))
            self.run(number)
        calls.update(read & set(calls))
        self.unclear |= read
        return calls

    def run(self, number: int) -> Any:
        """The model's output for one batch."""
        with torch.no_grad():
            return model_output(self._model, self.batches[number])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep outputs for the duration of the block."""
        try:
            for module in self._model.modules():
                self.watch(module)
            with self._every_expert():
                yield
        finally:
            for module, original in self._originals.items():
                if original is None:
                    module.__dict__.pop("forward", None)  # Ctrl-C may have come before it was put there
                else:
                    module.forward = original
            self._originals, self._outputs = {}, [{} for _ in self.batches]

    def _every_expert(self) -> AbstractContextManager[None]:
        """While entered, experts without tokens are called, too: all have their place in the order of calls."""
        experts = [module for module in self._model.modules() if isinstance(module, ExpertLayers)]
        return temporary_attributes(experts, calls_all=True)

    def watch(self, module: nn.Module) -> None:
        """Have a module's forward look for what is kept."""
        if isinstance(module, torch.jit.ScriptModule):
            return
        self._originals[module] = module.__dict__.get("forward")
        forward = module.forward
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            forward_hooks = any(part._forward_hooks or part._forward_pre_hooks for part in module)  # these must run
            if self._originals[module] is None and not forward_hooks:
                forward = partial(self._in_sequence, module)

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self._run_module(module, forward, args, kwargs)

        module.forward = watched

    def watch_instead(self, old: nn.Module, new: nn.Module) -> None:
        """Watch a module that was put in the place of another, while `watching`."""
        if old in self._once:
            self._once.add(new)
        self.watch(new)

    def layer_call(self, layer: nn.Module, number: int, *, sums: bool = False) -> LayerCall | None:
        """A layer's call in the pass of one batch, with `sums` followed to a sum; None where it is not reached.

        Of one that is called several times, the input is the rows of all calls, (B, n), and there is no sum.
        """
        ends: list[tuple[Branch, Tensor]] = []

        def end(branch: Branch, other: Tensor) -> None:
            if branch.layer is layer:
                ends.append((branch, other.clone()))
                raise _Reached

        self._target, self._input, self._inputs, self._tokens, self._batch = layer, None, [], [], number
        self._selection = Selection()
        once = layer in self._once
        self._beyond = Sums(end) if sums and layer in self._summed and once else None
        kept = dict(self._outputs[number]), self._kept_bytes
        with suppress(_Reached), _Functions(self._run_function), self._beyond or nullcontext():
            self.run(number)
        self._target = self._beyond = None
        if self._inputs:
            self._input, self._inputs = torch.cat(self._inputs), []
        if self._input is None:  # the pass went on through layers that will change
            self._outputs[number], self._kept_bytes = kept
            return None
        tokens = torch.cat(self._tokens) if self._tokens else None
        branch, other = ends[0] if ends else (None, None)
        return LayerCall(self._input, branch, other, tokens, self._selection)

    def targets(self, name: str, number: int, here: LayerCall) -> Tensor | None:
        """The outputs that a layer, seen `here`, should have for a batch, by its namesake in this model.

        For tokens that an expert is not given in this model, and for layers whose rows it selects otherwise, they are
        the real layer's outputs `here`.
        """
        layer = self._model.get_submodule(name)
        forward = partial(type(layer).forward, layer)  # not the watched one, which looks for what is kept
        there = self.layer_call(layer, number, sums=True)
        if there is None and here.tokens is None:
            return None
        with torch.no_grad():
            alike = there is not None and (there.x.shape, there.selection) == (here.x.shape, here.selection)
            if there is None or here.tokens is not None or not alike:
                wanted: Tensor = forward(here.x)
                if there is not None and here.tokens is not None and there.tokens is not None:
                    both = here.tokens & there.tokens
                    wanted[both[here.tokens]] = forward(there.x[both[there.tokens]])
                return wanted
            wanted = forward(there.x)
            if here.branch is not None and here.other is not None and there.other is not None:
                wanted = wanted + here.branch.before_norms(there.other - here.other)
        return wanted

    def _run_module(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if module is self._target:
            self._input = args[0] if args else next(iter(kwargs.values()))
            self._selection |= self._selected.of(self._input)
            if isinstance(experts := self._inside[0], ExpertLayers) and experts.tokens is not None:
                self._tokens.append(experts.tokens)
            if module not in self._once:
                self._inputs.append(self._input.flatten(0, -2).clone())
                return forward(*args, **kwargs)
            if self._beyond is None:
                raise _Reached
            self._input = self._input.clone()  # what follows may change it in place
        if self._beyond is None or self._input is None:
            return self._recall((module, WHOLE), partial(self._run_inside, module, forward, args, kwargs))
        output = forward(*args, **kwargs)  # with the layer, which will change: not kept
        if not self._beyond.follow(module, args, output) and module is self._target:
            self._beyond.begin(module, output)
        return output

    def _run_inside(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with temporary_attributes([self], _inside=(module, itertools.count())):
            return forward(*args, **kwargs)

    def _in_sequence(self, module: nn.Sequential, input: Any) -> Any:
        """The output of an nn.Sequential, from its last part whose output is kept: those before it are not needed."""
        outputs, parts = self._outputs[self._batch], list(module)
        last = max((place for place, part in enumerate(parts) if (part, WHOLE) in outputs), default=0)
        for part in parts[:last]:
            self._kept_bytes -= _size(outputs.pop((part, WHOLE), None))
        for part in parts[last:]:
            input = part(input)
        return input

    def _run_function(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function; kept of attention, which takes as long as a layer but is no module."""
        if self._input is not None and self._target in self._once:
            return function(*args, **kwargs)
        if self._input is not None or function is not F.scaled_dot_product_attention:
            result = function(*args, **kwargs)
        else:
            module, numbers = self._inside
            result = self._recall((module, next(numbers)), partial(function, *args, **kwargs))
        self._selected.follow(function, args, kwargs, result)
        return result

    def _recall(self, key: tuple[nn.Module, int], compute: Callable[[], Any]) -> Any:
        """The output kept under a key, or else computed and kept now, in place of those inside its module."""
        outputs, (module, number) = self._outputs[self._batch], key
        if key in outputs:
            return _copy(outputs[key])  # a copy, since what follows may change it in place
        output = compute()
        if module in self._once and self._target is not None and self._input is None:
            inner = set(module.modules()) if number == WHOLE else set()
            for old in [old for old in outputs if old[0] in inner]:
                self._kept_bytes -= _size(outputs.pop(old))
            if self._kept_bytes + _size(output) <= MOST_KEPT:
                self._kept_bytes += _size(output)
                outputs[key] = _copy(output)
        return output


def arguments(model: nn.Module, batch: Any) -> Any:
    """The part of a batch that `forward` takes, by position or by name: a batch may hold more, such as targets."""
    if not isinstance(batch, Mapping | tuple | list):
        return batch
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    if isinstance(batch, Mapping):
        names = [parameter.name for parameter in parameters]
        taken = {k: v for k, v in batch.items() if inspect.Parameter.VAR_KEYWORD in kinds or k in names}
        if not taken:
            raise TypeError(
                f"batches must have what {type(model).__name__}.forward takes, {', '.join(names)}, but have "
                f"{', '.join(map(str, batch))}; give its inputs by name, or tensors"
            )
        return taken
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return tuple(batch)
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(batch[: sum(parameter.kind in places for parameter in parameters)])


def model_output(model: nn.Module, batch: Any) -> Any:
    """A model's output for copies of a tensor, a tuple of arguments or a dictionary of keyword arguments."""
    batch = _copy(batch)
    try:
        if isinstance(batch, dict):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple) else model(batch)
    except (AttributeError, TypeError) as error:
        if any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(batch)):
            raise TypeError(f"batches must hold tensors, got arrays; give torch.as_tensor(x) ({error})") from error
        raise


def _copy(output: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)


def _size(output: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
