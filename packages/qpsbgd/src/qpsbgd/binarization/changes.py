"""Changes of a model that are taken back unless all of them succeed."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor, nn

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.conversion import expose_weights, replace_modules


class Changes:
    """Changes of `model` inside a `with` block; an exception takes them back, and watchers of the model with them.

    Ctrl-C may come while the block ends, too: entered twice, `with Changes(model) as changes, changes:`, the outer one
    then finishes what the inner one has begun. The model's modes are those of before in any case.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._before = [_Before(m) for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        self._modes = {module: module.training for module in model.modules()}
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._opened: dict[nn.Module, nn.Module] = {}

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for module, mode in self._modes.items():
            module.training = mode
        if kind is None:
            for new, old in self._opened.items():
                if not _has_binary(new):
                    self.replace(new, old)
        else:
            with torch.no_grad():
                for tensor, value in reversed(self._tensors):
                    tensor.copy_(value)
        for before in self._before:
            if kind is not None or not _has_binary(before.module):
                before.restore()

    def prepare(self) -> None:
        """Evaluation mode; attention and recurrent networks as layers, and nothing computed without calling these."""
        self.model.eval()
        for module in list(self.model.modules()):
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            devices = {parameter.device for parameter in module.parameters(recurse=False) if parameter.is_cuda}
            with torch.random.fork_rng(devices):  # torch's random state stays
                opened = expose_weights(module)
            if opened is not None:
                self._opened[opened] = module
                self._modes |= dict.fromkeys(opened.modules(), self._modes[module])
                self.replace(module, opened.eval())

    def replace(self, old: nn.Module, new: nn.Module) -> None:
        """Put `new` wherever the model has `old`, with the mode that `old` will have again at the end."""
        self._modes[new] = self._modes[old]
        self.model = replace_modules(self.model, {old: new})

    @torch.no_grad()
    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Overwrite a parameter or buffer."""
        self._tensors.append((tensor, tensor.detach().clone()))
        tensor.copy_(value)


class _Before:
    """A module as it was before: its parts, the attributes that decide how it computes, and its hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self._parts = module, dict(module._modules)
        names = ("forward", "activation_relu_or_gelu", "use_nested_tensor")
        self._own = {name: vars(module).get(name) for name in names}
        self._hooks = [(hooks, set(hooks)) for hooks in (module._forward_pre_hooks, module._forward_hooks)]

    def restore(self) -> None:
        self.module._modules.update(self._parts)
        for name, value in self._own.items():
            if value is None:
                vars(self.module).pop(name, None)
            else:
                vars(self.module)[name] = value
        for hooks, before in self._hooks:
            for key in hooks.keys() - before:
                del hooks[key]


def _has_binary(module: nn.Module) -> bool:
    return any(isinstance(inner, BinaryLayer) for inner in module.modules())
