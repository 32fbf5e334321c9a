"""The report of `binarize`: the loss of every layer, as a table."""

import math
from dataclasses import dataclass, field

from qpsbgd.nn.model_summary import ModelSummary, align_columns
from qpsbgd_qubo.files.html import html_table
from qpsbgd_qubo.files.visible import visible

_HEAD = ("layer", "weights", "bits", "rounding", "feedback", "search", "seconds")
MOST_NAMED = 4  # parts that stay real-valued and are named in the last line


@dataclass(frozen=True)
class LayerLoss:
    """The loss from binarising a layer: squared errors of its outputs, as shares of their variance.

    Attributes:
        name: As in `model.named_modules()`.
        shape: Shape of the weights, (outputs, inputs per output).
        bits: Binary vectors per output.
        rounding: Lost by signs with fitted scales.
        feedback: Lost after error feedback; None without it.
        search: Lost after the search; None without a search.
        seconds: Time for the layer, without forward passes.
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
        summary: What the whole model consists of now.
    """

    rows: tuple[LayerLoss, ...]
    kept: dict[str, str]
    summary: ModelSummary = field(repr=False)

    @property
    def bits_per_weight(self) -> float:
        """The mean over all weights of the binarised layers."""
        sizes = [row.shape[0] * row.shape[1] for row in self.rows]
        return sum(row.bits * size for row, size in zip(self.rows, sizes, strict=True)) / sum(sizes)

    def _repr_html_(self) -> str:
        return html_table(_HEAD, map(_cells, self.rows), left=2, notes=self._notes())

    def __str__(self) -> str:
        return "\n".join([*align_columns([_HEAD, *map(_cells, self.rows)], left=2), *self._notes()])

    def _notes(self) -> list[str]:
        kept = [f"{visible(name) or '(model)'} stays real-valued: {why}" for name, why in self.kept.items()]
        return [*kept, self._shares()]

    def _shares(self) -> str:
        """How much of the model is binary, and the largest parts that are not."""
        total, parts = self.summary.total, self.summary.rows
        binary = sum(math.prod(row.shape) for row in parts if row.binary_weights)
        whole = binary + total.real_parameters
        real = sorted((row for row in parts if not row.binary_weights), key=lambda row: -row.real_parameters)
        names = [f"{visible(row.name) or '(model)'} ({row.real_parameters:,})" for row in real[:MOST_NAMED]]
        if rest := sum(row.real_parameters for row in real[MOST_NAMED:]):
            names.append(f"{len(real) - MOST_NAMED} more ({rest:,})")
        shares = 100 * binary / max(whole, 1), 100 * total.binary_weights / 8 / max(total.bytes, 1)
        listed = ", ".join(names) or "scales and biases alone"
        return "{:.1f} % of the parameters, {:.1f} % of the bytes are binary; float remain: ".format(*shares) + listed


def _cells(row: LayerLoss) -> tuple[str, ...]:
    losses = ("–" if loss is None else f"{100 * loss:.2f} %" for loss in (row.rounding, row.feedback, row.search))
    shape = f"{row.shape[0]} × {row.shape[1]}"
    return visible(row.name) or "(model)", shape, str(row.bits), *losses, f"{row.seconds:.2f}"
