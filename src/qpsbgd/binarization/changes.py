"""Changes of a model that are taken back unless all of them succeed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor, nn

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.attention import ProjectedAttention


class Changes:
    """Changes of `model` inside a `with` block; an exception takes them back, and watchers of the model with them.

    Ctrl-C may come while the block ends, too: entered twice, `with Changes(model) as changes, changes:`, the outer one
    then finishes what the inner one has begun.

    Args:
        model: What to change.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._watched = [_Watched(m) for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        self._modes: list[tuple[nn.Module, bool]] = []
        self._backwards: list[Callable[[], None]] = []
        self._opened: list[tuple[nn.Module, Callable[[], None]]] = []

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for module, mode in self._modes:
            module.training = mode
        if kind is not None:
            for back in reversed(self._backwards):
                back()
            for watched in self._watched:
                watched.restore()
        else:
            self._close()

    def evaluate(self) -> None:
        """Evaluation mode, until the block ends."""
        self._modes += [(module, module.training) for module in self.model.modules()]
        self.model.eval()

    def open_attention(self) -> None:
        """nn.MultiheadAttention with its projections as layers, and nothing computed without calling these.

        Where no layer has become binary at the end, this is taken back.
        """
        for module in list(self.model.modules()):
            if isinstance(module, nn.TransformerEncoderLayer):
                self._assign(module, "activation_relu_or_gelu", 0)
            elif isinstance(module, nn.TransformerEncoder):
                self._assign(module, "use_nested_tensor", False)
            elif type(module) is nn.MultiheadAttention and ProjectedAttention.fits(module):
                opened = ProjectedAttention.of(module)
                mode = dict(self._modes).get(module, module.training)
                self._modes += [(inner, mode) for inner in opened.modules()]
                self.replace(module, opened.eval())
                self._opened.append((opened, lambda old=module, new=opened: self.replace(new, old)))  # type: ignore[misc]

    def replace(self, old: nn.Module, new: nn.Module) -> None:
        """Put `new` wherever the model has `old`, with the mode that `old` will have again at the end."""
        self._modes += [(new, mode) for module, mode in self._modes if module is old]
        if old is self.model:
            self.model = new
        for parent in list(self.model.modules()):
            for name, child in list(parent._modules.items()):
                if child is old:
                    self._backwards.append(lambda parent=parent, name=name: setattr(parent, name, old))  # type: ignore[misc]
                    setattr(parent, name, new)

    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Overwrite a buffer."""
        before = tensor.clone()
        self._backwards.append(lambda: _write(tensor, before))
        _write(tensor, value)

    def _assign(self, module: nn.Module, name: str, value: object) -> None:
        if hasattr(module, name):
            before = getattr(module, name)
            self._backwards.append(lambda: setattr(module, name, before))
            self._opened.append((module, self._backwards[-1]))
            setattr(module, name, value)

    def _close(self) -> None:
        for module, back in self._opened:
            if not any(isinstance(inner, BinaryLayer) for inner in module.modules()):
                back()


class _Watched:
    """What a module had before anybody watched it: a forward of its own, and hooks."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._forward = module, module.__dict__.get("forward")
        self._hooks = [(hooks, set(hooks)) for hooks in (module._forward_pre_hooks, module._forward_hooks)]

    def restore(self) -> None:
        if self._forward is None:
            self._module.__dict__.pop("forward", None)
        else:
            self._module.__dict__["forward"] = self._forward
        for hooks, before in self._hooks:
            for key in hooks.keys() - before:
                del hooks[key]


def _write(tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)
