"""What the binary optimisers share: they take binary layers, and every parameter has exactly one optimiser."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import TrainingTape
from qpsbgd.optim.rates import cosine, default_rate

Layers = nn.Module | Iterable[nn.Module] | Iterable[dict[str, Any]]


class LayerwiseOptimizer(Optimizer):
    """A torch optimiser of the latent weights of binary layers.

    Wherever torch optimisers take parameters, these take a model, a layer, or several of them; the latent weights of
    the binary layers inside become the group's `params`.
    """

    _told_of_the_end = False

    def __init__(self, model_or_layers: Layers, defaults: dict[str, Any]) -> None:
        self._layers: dict[Tensor, BinaryLayer] = {}
        params = [model_or_layers] if isinstance(model_or_layers, nn.Module | dict) else list(model_or_layers)
        defaults = {name: _plain(value) for name, value in defaults.items()} | {"step": 0}
        if defaults["relative"] is None:
            defaults["relative"] = defaults["lr"] is None
        if defaults["lr"] is None:
            if not defaults["relative"]:
                raise ValueError("the default learning rate is relative; leave relative out, or give lr")
            layers = len(binary_layers(_modules(params)))
            defaults["lr"] = default_rate(self._rate_factor(defaults), layers=layers, steps=defaults["steps"])
        self._check_options(defaults)
        super().__init__(cast(Any, params), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers with options of their own: `{"params": model.head, "lr": 0.1}`."""
        if "params" not in param_group:
            raise ValueError('a parameter group needs the key "params" with a model, a layer or a list of layers')
        unknown = sorted(set(param_group) - set(self.defaults) - {"params"})
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no option {', '.join(unknown)}; "
                f"it has {', '.join(name for name in self.defaults if name != 'step')}"
            )
        param_group = {name: _plain(value) for name, value in param_group.items()}
        self._check_options({**self.defaults, **param_group})
        layers = binary_layers(param_group["params"])
        super().add_param_group({**param_group, "params": [layer.weight for layer in layers]})
        for layer in layers:
            self._layers[layer.weight] = layer
            self._adopt(layer)

    def _check_options(self, options: dict[str, Any]) -> None:
        """Raise ValueError for invalid options."""
        check_range(options, "lr", least=0)
        if options.get("clip") != "range":
            check_range(options, "clip", above=0, optional=True)
        if not isinstance(options["relative"], bool):
            raise TypeError(f"relative must be True or False, got {options['relative']!r}")
        if options["steps"] is not None:
            check_whole(options, "steps", least=1)

    @abstractmethod
    def _rate_factor(self, options: dict[str, Any]) -> float:
        """The factor of `default_rate` for these options, where no learning rate is given."""

    def _rate(self, group: dict[str, Any], layer: BinaryLayer) -> float:
        """The step size of a layer's latent weights: `lr`, by the schedule of `steps`, in the layer's units."""
        share = 1.0 if group["steps"] is None else cosine(group["step"], group["steps"])
        return float(group["lr"]) * share * (layer.initial_bound if group["relative"] else 1.0)

    def _count_step(self) -> None:
        """One more step of every group is made."""
        for group in self.param_groups:
            group["step"] += 1
            if group["steps"] is not None and group["step"] > group["steps"] and not self._told_of_the_end:
                self._told_of_the_end = True
                warnings.warn(
                    f"{type(self).__name__} was made for steps={group['steps']}, after which its learning rate is "
                    "zero: further steps change nothing; give the number of steps of the whole training",
                    stacklevel=callers_level(),
                )

    @abstractmethod
    def _adopt(self, layer: BinaryLayer) -> None:
        """Prepare a layer that this optimiser now trains."""

    def _check_gradients(self, layers: Iterable[BinaryLayer]) -> None:
        """Raise ValueError, naming the layer, if a gradient holds NaN or infinite values."""
        layers = [layer for layer in layers if layer.weight.grad is not None]
        norms = [layer.weight.grad.abs().amax() for layer in layers if layer.weight.grad is not None]
        if norms and not torch.stack([norm.to(norms[0].device) for norm in norms]).isfinite().all():
            bad = [str(layer) for layer, norm in zip(layers, norms, strict=True) if not norm.isfinite()]
            raise ValueError(f"the gradient of {', '.join(bad)} holds NaN or infinite values; nothing was changed")

    def _check_state(self, state_dict: dict[str, Any], known: set[str]) -> None:
        """Raise ValueError unless a state has this optimiser's options, and no more than the `known` entries."""
        for group in state_dict["param_groups"]:
            missing = sorted(set(self.defaults) - set(group) - {"differentiable"})  # which torch adds by itself
            if missing:
                raise ValueError(
                    f"this is not a state of {type(self).__name__}: its groups have no {', '.join(missing)}; "
                    "load it into the kind of optimiser that it was saved from"
                )
        foreign = sorted({name for saved in state_dict["state"].values() for name in saved} - known)
        if foreign:
            raise ValueError(
                f"this is not a state of {type(self).__name__}: it holds {', '.join(foreign)}; "
                "load it into the kind of optimiser that it was saved from"
            )

    def _check_kept(self, weight: Tensor, state: dict[str, Any]) -> None:
        """Raise RuntimeError where what is kept of a weight has another type, place or shape."""
        for value in state.values():
            if isinstance(value, dict):
                self._check_kept(weight, value)
            elif isinstance(value, Tensor) and value.ndim:
                kept, wanted = ((t.dtype, t.device, tuple(t.shape)) for t in (value, weight))
                if kept != wanted:
                    raise RuntimeError(
                        f"the state of {self._layers[weight]} is {kept}, but its weight {wanted}; convert or move the "
                        "model before the optimiser is made, load a state of the same model, or make a new optimiser"
                    )

    def _run(self, closure: Callable[[], float] | None) -> float | None:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layers": list(self._layers.values())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = state.pop("_layers", None) if "_layers" in state else None
        super().__setstate__(state)
        if layers is not None:
            self._layers = {layer.weight: layer for layer in layers}
            for layer in layers:
                self._adopt(layer)


def release(layer: BinaryLayer) -> None:
    """Undo what an earlier optimiser has set on a layer: its tape and its latent forward pass."""
    if isinstance(layer.tape, TrainingTape):
        layer.tape.close()
    layer.tape, layer.latent_forward = None, False


def binary_layers(model_or_layers: nn.Module | Iterable[nn.Module]) -> list[BinaryLayer]:
    """The binary layers in a model, a layer or several of them, in order, each once.

    Raises:
        TypeError: The argument is something else, such as `model.parameters()`.
        ValueError: There is no binary layer, or two layers share one weight.
    """
    modules = [model_or_layers] if isinstance(model_or_layers, nn.Module) else list(model_or_layers)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"a binary optimiser takes a model or binary layers, got {type(module).__name__}: it has to record "
                "what the layers see, so pass the model where you would pass model.parameters()"
            )
    found = dict.fromkeys(m for module in modules for m in module.modules() if isinstance(m, BinaryLayer))
    if not found:
        raise ValueError("there is no binary layer here; build the model with qpsbgd.nn.BinaryLinear")
    twice = [p for p, count in Counter(layer.weight for layer in found).items() if count > 1]
    if twice:
        raise ValueError(
            f"{len(twice)} weight(s) belong to more than one layer; call one layer several times instead of sharing "
            "its weight"
        )
    return list(found)


def _modules(params: list[Any]) -> list[nn.Module]:
    """The modules in what an optimiser was given: modules, or groups of them."""
    given = [param["params"] if isinstance(param, dict) and "params" in param else param for param in params]
    return [module for one in given for module in ([one] if isinstance(one, nn.Module) else one)]


def clipped(weight: Tensor, limit: float | None) -> Tensor:
    """The latent weights within ±limit; None sets no limit."""
    return weight if limit is None else weight.clamp(-limit, limit)


def check_range(
    options: dict[str, Any],
    name: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Raise ValueError unless least ≤ options[name] < below and options[name] > above, or None where `optional`."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor | None):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if (value is None and optional) or (value is not None and value >= least and above < value < below):
        return
    bounds = [(f"at least {least}", least > -math.inf), (f"above {above}", above > -math.inf)]
    bounds += [(f"below {below}", below < math.inf), ("finite", below == math.inf)]
    wanted = " and ".join(text for text, used in bounds if used)
    raise ValueError(f"{name} must be {wanted}, got {value}")


def check_whole(options: dict[str, Any], name: str, *, least: int) -> None:
    """Raise TypeError or ValueError unless options[name] is a whole number of at least `least`."""
    value = _plain(options[name])
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    check_range({name: value}, name, least=least)


def callers_level() -> int:
    """The `stacklevel` with which a warning points at the code that called the optimiser, outside torch and qpsbgd."""
    level, frame = 1, inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "qpsbgd"):
        level, frame = level + 1, frame.f_back
    return level


def _plain(value: Any) -> Any:
    """A numpy number as Python's own, which checkpoints can hold."""
    return value.item() if isinstance(value, np.generic) else value


def real_optimizer(
    model: nn.Module, beside: Optimizer, kind: type[Optimizer] = torch.optim.Adam, **options: Any
) -> Optimizer:
    """An ordinary optimiser for all parameters that `beside` does not train: biases, norms, encoders.

    In a model without such parameters its steps do nothing; a GradScaler does not accept such an optimiser.

    Args:
        model: The whole model.
        beside: The binary optimiser of the model.
        kind: Class of the optimiser to make.
        **options: Passed on to it, such as `lr=1e-3`.

    Raises:
        ValueError: A binary layer's weight was left out by `beside`, or `beside` holds parameters of another model.
    """
    claimed = {p for group in beside.param_groups for p in group["params"]}
    rest = [p for p in model.parameters() if p.requires_grad and p not in claimed]
    optimizer = kind([{"params": rest}], **options)
    check_claimed(model, beside, optimizer)
    return optimizer


def check_claimed(model: nn.Module, *optimizers: Optimizer) -> None:
    """Check that every trainable parameter of `model` has exactly one optimiser, binary weights a binary one.

    Raises:
        ValueError: Names the parameters claimed twice, never, by the wrong kind, or from outside the model.
    """
    names = {p: name for name, p in model.named_parameters()}
    binary = {m.weight for m in model.modules() if isinstance(m, BinaryLayer)}
    claims = Counter(p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    ordinary = {
        p
        for optimizer in optimizers
        if not isinstance(optimizer, LayerwiseOptimizer)
        for group in optimizer.param_groups
        for p in group["params"]
    }
    faults = {
        "claimed by more than one optimiser": [names.get(p, "?") for p, count in claims.items() if count > 1],
        "claimed by none": [name for p, name in names.items() if p.requires_grad and p not in claims],
        "binary weights in an ordinary optimiser": [names[p] for p in ordinary & binary],
        "claimed but not of this model": [f"shape {tuple(p.shape)}" for p in claims if p not in names],
    }
    found = [f"{fault}: {', '.join(which)}" for fault, which in faults.items() if which]
    if found:
        raise ValueError("every parameter needs exactly one optimiser; " + "; ".join(found))
