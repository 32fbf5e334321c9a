"""The report of `binarize`: the loss of every layer, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from qpsbgd.nn.model_summary import aligned
from qpsbgd_qubo.files.html import html_table
from qpsbgd_qubo.files.visible import visible

_HEAD = ("layer", "weights", "bits", "rounding", "feedback", "search", "seconds")


@dataclass(frozen=True)
class LayerLoss:
    """The loss by binarising a layer, as shares of the energy of its outputs around their mean.

    Attributes:
        name: As in `model.named_modules()`.
        shape: Shape of the weights, (outputs, inputs per output).
        bits: Binary vectors per output.
        rounding: Lost by signs with fitted scales.
        feedback: Lost after error feedback; None without feedback, or if blocks were searched.
        search: Lost after the search; None without a search.
        seconds: Time for the layer, without forward passes unless it was cut into blocks.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    rounding: float
    feedback: float | None = None
    search: float | None = None
    seconds: float = 0.0

    @property
    def lost(self) -> float:
        """The share that the layer ends with."""
        return next(loss for loss in (self.search, self.feedback, self.rounding) if loss is not None)


@dataclass(frozen=True)
class Report:
    """The layers in the order in which they were binarised; `print` shows a table.

    Attributes:
        rows: One per layer.
        kept: Layers that could not be binarised, with the reason.
    """

    rows: tuple[LayerLoss, ...]
    kept: dict[str, str]

    @property
    def bits_per_weight(self) -> float:
        """The mean over all weights of the binarised layers."""
        sizes = [row.shape[0] * row.shape[1] for row in self.rows]
        return sum(row.bits * size for row, size in zip(self.rows, sizes, strict=True)) / sum(sizes)

    def _repr_html_(self) -> str:
        return html_table(_HEAD, map(_cells, self.rows), left=2, notes=self._notes())

    def __str__(self) -> str:
        return "\n".join([*aligned([_HEAD, *map(_cells, self.rows)], left=2), *self._notes()])

    def _notes(self) -> list[str]:
        return [f"{visible(name)} stays real-valued: {why}" for name, why in self.kept.items()]


def _cells(row: LayerLoss) -> tuple[str, ...]:
    losses = ("–" if loss is None else f"{100 * loss:.2f} %" for loss in (row.rounding, row.feedback, row.search))
    shape = f"{row.shape[0]} × {row.shape[1]}"
    return visible(row.name) or "(model)", shape, str(row.bits), *losses, f"{row.seconds:.2f}"
