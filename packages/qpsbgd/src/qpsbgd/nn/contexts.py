"""Blocks in which modules have other attributes, hooks, or a mode for the time being."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def temporary_attributes(objects: Iterable[Any], **values: Any) -> Iterator[None]:
    """Attributes have these values for the duration of the block, and then their own again."""
    before = [(owner, name, getattr(owner, name)) for owner in objects for name in values]
    try:
        for owner, name, _ in before:
            setattr(owner, name, values[name])
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def forward_hooks(modules: Iterable[nn.Module], hook: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Within the block, every call of one of these modules is followed by hook(module, arguments, output)."""
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(hook))
        yield


def evaluation_mode(*models: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode; afterwards every module is in the mode that it was in."""
    return temporary_attributes([module for model in models for module in model.modules()], training=False)
