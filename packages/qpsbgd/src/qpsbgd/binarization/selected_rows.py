"""Which rows a layer is given, where a model selects them by what it computes: a router with a capacity, token pruning.

Two networks that give a layer equally many rows may have selected different ones.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

Selection = frozenset[int]

_SELECTING = {"__getitem__", "index_select", "gather", "take_along_dim", "take", "masked_select"}
_MULTIPLYING = {"einsum", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "tensordot"}
_WRITING = ("__setitem__", "index_", "scatter", "masked_scatter")  # rows into a tensor that has its own
_ADDING = {"add", "add_", "__add__", "__radd__", "__iadd__"}  # as residual branches: rows are those that both know


class SelectedRows:
    """Follows tensors through the functions of a pass, each with a digest of all indices that selected its rows.

    Indices are tensors, or matrices of zeros and ones that something other than a parameter is multiplied by.
    """

    def __init__(self) -> None:
        self._selections: MutableMapping[Tensor, Selection] = WeakTensorKeyDictionary()

    def of(self, value: Any) -> Selection:
        """The selection of a tensor's rows; empty where they are those of the model's inputs."""
        known = isinstance(value, Tensor) and value in self._selections
        return self._selections[value] if known else frozenset()

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A function has given a result."""
        name = getattr(function, "__name__", "")
        written = name.startswith(_WRITING) and name != "index_select"
        leaves = [leaf for leaf in tree_leaves(args[:1] if written else (args, kwargs)) if isinstance(leaf, Tensor)]
        selection = frozenset[int]().union(*map(self.of, leaves))
        if len(leaves) > 1 and not any(isinstance(leaf, nn.Parameter) for leaf in leaves):
            if name in _ADDING and leaves[0].shape == leaves[1].shape:
                selection = self.of(leaves[0]) & self.of(leaves[1])
            elif name in _SELECTING:
                selection |= {_digest(index) for index in leaves[1:]}
            elif name in _MULTIPLYING:
                selection |= {_digest(leaf) for leaf in leaves if bool(((leaf == 0) | (leaf == 1)).all())}
        if selection:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._selections[leaf] = selection


def _digest(index: Tensor) -> int:
    return hash((tuple(index.shape), index.numpy(force=True).tobytes()))
