"""A summary of a model: shapes, bits, bytes and operations of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.nn.contexts import evaluation_mode, forward_hooks
from qpsbgd.nn.layers import BinaryLayer
from qpsbgd_qubo.files.html import html_table
from qpsbgd_qubo.files.visible import visible

_HEAD = ("layer", "kind", "weight", "binary weights", "real", "bytes", "float32 bytes", "multiply-adds")


@dataclass(frozen=True)
class LayerSummary:
    """One layer of a model.

    Attributes:
        name: As in `model.named_modules()`; empty where the model is the layer.
        kind: The class.
        shape: Shape of its weight, without the dimension of the bits.
        binary_weights: Weights ±1, all bits counted.
        real_parameters: All other parameters.
        bytes: One bit per binary weight and four bytes per real parameter.
        float32_bytes: Bytes of the same layer with real weights.
        multiply_adds: Per sample; None where they are not known.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    binary_weights: int
    real_parameters: int
    bytes: int
    float32_bytes: int
    multiply_adds: int | None


@dataclass(frozen=True)
class ModelSummary:
    """The layers of a model that have parameters, in the order of `model.modules()`; `print` shows a table."""

    rows: tuple[LayerSummary, ...]

    @property
    def total(self) -> LayerSummary:
        """The sums over all layers; multiply-adds are None where no layer has any."""
        known = [row.multiply_adds for row in self.rows if row.multiply_adds is not None]
        names = ("binary_weights", "real_parameters", "bytes", "float32_bytes")
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in names}
        return LayerSummary("total", "", (), **sums, multiply_adds=sum(known) if known else None)

    def _repr_html_(self) -> str:
        return html_table(_HEAD, map(_cells, (*self.rows, self.total)), left=3)

    def __str__(self) -> str:
        *texts, total = align_columns([_HEAD, *map(_cells, (*self.rows, self.total))], left=3)
        return "\n".join([*texts, texts[1], total])


def align_columns(lines: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """A head and lines of cells as text, in columns: the first `left` flush left, all others flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rest = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return [head, "-" * max(map(len, (head, *rest))), *rest]


def summary(
    model: nn.Module, input_size: Sequence[int] | None = None, *, inputs: Tensor | tuple[Any, ...] | None = None
) -> ModelSummary:
    """Shapes, binary weights, bytes and multiply-adds of every layer that has parameters.

    Multiply-adds are those of linear layers and convolutions, per sample. They need one forward pass, in evaluation
    mode and without gradients.

    Args:
        model: The model.
        input_size: Shape of one sample, without the batch dimension: (1, 28, 28).
        inputs: Instead of `input_size`, a batch or the tuple of the model's arguments; the batch is the first
            dimension of the first of them.

    Examples:
        >>> from qpsbgd import summary
        >>> from qpsbgd.nn import BinaryLinear
        >>> summary(BinaryLinear(64, 10)).rows[0].binary_weights
        640
    """
    if input_size is not None and inputs is not None:
        raise ValueError("input_size and inputs both say what the model takes; give one of them")
    if input_size is not None:
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        inputs = torch.zeros(1, *input_size, dtype=like.dtype, device=like.device)
    work: dict[nn.Module, int] = {}
    if inputs is not None:
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        work = {module: count // len(arguments[0]) for module, count in _multiply_adds(model, arguments).items()}
    seen: set[nn.Parameter] = set()
    rows = []
    for name, module in model.named_modules():
        parameters = [p for p in module.parameters(recurse=False) if p not in seen]
        seen.update(parameters)
        if parameters:
            rows.append(_row(name, module, parameters, work.get(module)))
    return ModelSummary(tuple(rows))


def _row(name: str, module: nn.Module, parameters: list[nn.Parameter], multiply_adds: int | None) -> LayerSummary:
    weight, bits = getattr(module, "weight", None), _bits(module)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else ()
    shape = shape if bits == 1 else shape[:1] + shape[2:]
    binary = sum(p.numel() for p in parameters if isinstance(module, BinaryLayer) and p is weight)
    real = sum(p.numel() for p in parameters) - binary
    size, real_size = (binary + 7) // 8 + 4 * real, 4 * (binary // bits + real)
    return LayerSummary(name, type(module).__name__, shape, binary, real, size, real_size, multiply_adds)


def _bits(module: nn.Module) -> int:
    return module.bits if isinstance(module, BinaryLayer) else 1


def _multiply_adds(model: nn.Module, arguments: tuple[Any, ...]) -> dict[nn.Module, int]:
    """Multiply-adds of the layers that one forward pass calls: one per weight and row, a sample or a patch."""
    counts: dict[nn.Module, int] = {}

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        weight: Any = module.weight
        counts[module] = counts.get(module, 0) + output.numel() * weight[0].numel() // _bits(module)

    kinds = (BinaryLayer, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    counted = [module for module in model.modules() if isinstance(module, kinds)]
    with evaluation_mode(model), torch.no_grad(), forward_hooks(counted, count):
        model(*arguments)
    return counts


def _cells(row: LayerSummary) -> tuple[str, ...]:
    numbers = (row.binary_weights, row.real_parameters, row.bytes, row.float32_bytes)
    return (
        visible(row.name) or "(model)",
        row.kind,
        " × ".join(map(str, row.shape)),
        *(f"{number:,}" for number in numbers),
        "–" if row.multiply_adds is None else f"{row.multiply_adds:,}",
    )
