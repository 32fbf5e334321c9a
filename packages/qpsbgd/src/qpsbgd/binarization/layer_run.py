"""The run of `binarize` over the layers: moments of their inputs, their binary weights, what each has lost."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from qpsbgd.binarization.changes import Changes
from qpsbgd.binarization.layer_fit import empty_like, fill, fit_layer, matrices, target_weights, weight_like
from qpsbgd.binarization.layer_report import LayerLoss
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.passes import LayerCall, Passes
from qpsbgd.binarization.planes import SEARCHES, Effort
from qpsbgd.binarization.selection import Selection
from qpsbgd.nn.convolutions import BinaryConvNd
from qpsbgd.nn.experts import ExpertLayers
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd.solvers import SOLVERS, Solver, make_solver
from qpsbgd_qubo.files.memory import check_memory
from qpsbgd_qubo.options import COUNT, check_options

LEAST_ROWS, ROWS_PER_INPUT = 16384, 16
"""A layer's Q is made of at most so many rows of inputs, or so many per input if that is more, spread over all."""
MOST_NUMBERS, LEAST_PER_INPUT = 2**28, 4
"""Wider layers than 4096 inputs take fewer rows: all together at most so many numbers, but so many rows per input.

A quarter of the rows takes half the time, or less, and loses 7 % more (1,024 inputs, 16 outputs, correlated).
"""
MATRICES = 6  # inputs × inputs, in double precision, that a layer takes at most: moments, factors, couplings
MOST_INPUTS_REFITTED = 4096  # of layers that stay real-valued: wider ones would take more time than binary ones


class NoRows(ValueError):
    """No calibration batch has any rows for a layer."""


Reader = BinaryLinear | BinaryConvNd  # a binary layer that makes rows of a real one's inputs and outputs


@dataclass(frozen=True)
class Options:
    """The options of `binarize`, checked."""

    bits: int | Mapping[str, int]
    solver: str | Solver
    rounds: int
    targets: str
    bias: bool
    rows: Callable[[Any], Tensor | None] | None
    progress: bool | Callable[[LayerLoss], None]

    def __post_init__(self) -> None:
        numbers = list(self.bits.values()) if isinstance(self.bits, Mapping) else [self.bits]
        if not all(isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= 8 for b in numbers):
            raise ValueError(f"bits must be integers from 1 to 8, got {self.bits!r}")
        if self.targets not in ("own", "float"):
            raise ValueError(f'targets must be "own" or "float", got {self.targets!r}')
        check_options(self, rounds=COUNT)
        if self.solver not in SEARCHES:
            if isinstance(self.solver, str) and self.solver not in SOLVERS:
                methods, solvers = ", ".join(f'"{name}"' for name in SEARCHES), ", ".join(SOLVERS)
                raise ValueError(f"solver must be one of {methods}, or a QUBO solver, {solvers}; got {self.solver!r}")
            object.__setattr__(self, "solver", make_solver(self.solver))

    def check_names(self, selection: Selection) -> None:
        """Raise ValueError if `bits` names a layer that is not selected."""
        names = set(self.bits) if isinstance(self.bits, Mapping) else set()
        if unknown := sorted(map(str, names - set(selection.names.values()))):
            raise ValueError(f"bits names layers that are not binarised: {', '.join(unknown)}")

    def bits_of(self, name: str) -> int:
        """Binary vectors per weight of a layer."""
        return self.bits if isinstance(self.bits, int) else self.bits.get(name, 1)

    def mask(self, batch: Any) -> Tensor | None:
        """The tokens of a batch that count; None for all."""
        if self.rows is not None:
            given = self.rows(batch)
            if given is not None and not isinstance(given, Tensor):
                raise TypeError(f"rows must return a mask of the tokens that count or None, got {type(given).__name__}")
            return given
        mask = batch.get("attention_mask") if isinstance(batch, dict) else None
        return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


Show = Callable[[LayerLoss], object]
Note = Callable[[str], object]


@contextmanager
def _progress(progress: bool | Callable[[LayerLoss], None], layers: int) -> Iterator[tuple[Show, Note]]:
    """Functions to call after every layer and within one: they show a bar, call the user's, or do nothing."""
    if callable(progress) or not progress:
        yield progress or (lambda line: None), lambda text: None
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True shows a bar, which needs tqdm: pip install tqdm") from error
        with tqdm(total=layers, desc="binarize", unit="layer") as bar:
            yield lambda line: bar.update(), bar.set_postfix_str


@dataclass(frozen=True)
class LayerRun:
    """The layers one after the other."""

    changes: Changes
    passes: Passes
    options: Options
    generator: torch.Generator
    selection: Selection
    reference: Passes | None  # of the float network

    def losses(self, calls: Mapping[nn.Module, int]) -> tuple[LayerLoss, ...]:
        """Replace the layers, and say what each has lost; `calls` has how often a pass calls each module, in order."""
        names = self.selection.names
        for layer, name in names.items():
            if not all(p.isfinite().all() for p in layer.parameters()):
                raise ValueError(f"{name}: weight or bias hold NaN or infinite values; binarize needs a trained model")
            if self.generator.device.type == "cpu":
                groups, inputs, _ = matrices(layer).shape
                what = f"{name}: the moments of {groups * inputs} inputs"
                check_memory(MATRICES * 8 * groups * inputs**2, what, "leave it out of `layers`")
        lines: list[LayerLoss] = []
        watching = nullcontext() if self.reference is None else self.reference.watching()
        experts = [module for module in self.changes.model.modules() if isinstance(module, ExpertLayers)]
        with self.passes.watching(), watching, _progress(self.options.progress, len(names)) as (show, note):
            for module in calls:
                if module in names:
                    try:
                        lines.append(self._binarize(module, names[module], note))
                    except NoRows:
                        if not any(module in set(expert.modules()) for expert in experts):
                            raise
                        self.selection.kept[names[module]] = "no calibration batch has tokens for this expert"
                    else:
                        show(lines[-1])
                elif lines and self.reference is not None and module in self.selection.real:
                    self._fit_to_targets(module, self.selection.real[module], note)
                elif lines and self.reference is None and isinstance(module, _BatchNorm) and calls[module] == 1:
                    self._estimate(module)
        return tuple(lines)

    def _binarize(self, layer: nn.Module, name: str, note: Note) -> LayerLoss:
        options, weights = self.options, matrices(layer)
        biased = options.bias or getattr(layer, "bias", None) is not None
        binary = empty_like(layer, bits=options.bits_of(name), bias=biased)
        effort = Effort(options.solver, options.rounds, self.generator)
        moments = self._moments(layer, name, binary, note)
        note(f"{name}: search")
        start = time.monotonic()
        metrics = moments.metric(centred=biased)
        if self.reference is not None:
            weights = target_weights(metrics, moments.cross(centred=biased), weights)
        fit = fit_layer(metrics, weights, bits=binary.bits, effort=effort)
        if self.reference is None:
            bias = torch.einsum("gn,gnm->gm", moments.mean, fit.errors)
            if (old := getattr(layer, "bias", None)) is not None:
                bias = bias + old.detach().double().reshape(bias.shape)
        else:
            bias = moments.target_mean - torch.einsum("gn,gnm->gm", moments.mean, weights - fit.errors)
        fill(binary, layer, fit, bias)
        self.changes.replace(layer, binary)
        self.passes.watch_instead(layer, binary)
        took = time.monotonic() - start
        return LayerLoss(
            name, (len(weights) * weights.shape[2], weights.shape[1]), binary.bits, **fit.lost, seconds=took
        )

    def _fit_to_targets(self, layer: Any, name: str, note: Note) -> None:
        """A layer that stays real-valued makes up for errors of those before it, too."""
        weights, biased = matrices(layer), layer.bias is not None
        if weights.shape[1] > MOST_INPUTS_REFITTED:
            return
        moments = self._moments(layer, name, empty_like(layer, bits=1, bias=biased), note)
        weights = target_weights(moments.metric(centred=biased), moments.cross(centred=biased), weights)
        self.changes.set(layer.weight, weight_like(layer, weights))
        if biased:
            missing = moments.target_mean - torch.einsum("gn,gnm->gm", moments.mean, weights)
            self.changes.set(layer.bias, missing.flatten())

    def _estimate(self, norm: _BatchNorm) -> None:
        """Statistics of a batch norm for the inputs that it has now."""
        if norm.running_mean is None or norm.running_var is None:
            return
        name = next(path for path, module in self.changes.model.named_modules() if module is norm)
        moments = Moments(norm.num_features, 1, name)
        for number in range(len(self.passes.batches)):
            if (call := self.passes.layer_call(norm, number)) is not None:
                moments.add(call.x.movedim(1, -1).reshape(-1, norm.num_features))
        unbiased = moments.count / max(moments.count - 1, 1)
        self.changes.set(norm.running_mean, moments.mean[:, 0])
        self.changes.set(norm.running_var, unbiased * moments.metric(centred=True)[:, 0, 0])

    def _moments(self, layer: nn.Module, name: str, reader: Reader, note: Note) -> Moments:
        """The moments of a layer's inputs and, where there is a float network, of the outputs that it should have."""
        (groups, inputs, _), reference = matrices(layer).shape, self.reference
        moments = Moments(groups, inputs, name)
        for number, batch in enumerate(self.passes.batches):
            note(f"{name}: batch {number + 1} of {len(self.passes.batches)}")
            call = self.passes.layer_call(layer, number, sums=reference is not None)
            wanted = None if call is None or reference is None else reference.targets(name, number, call)
            if call is not None and (wanted is not None or reference is None):
                mask, at = self._choose_rows(batch, call, reader)
                targets = None if wanted is None else reader.grad_rows(wanted[mask], at)
                moments.add(reader.plain_rows(call.x[mask], at), targets)
        if not moments.count:
            raise NoRows(f"{name}: no calibration batch has any rows for it")
        return moments

    def _choose_rows(self, batch: Any, call: LayerCall, reader: Reader) -> tuple[Any, Tensor | None]:
        """A mask of the tokens that count, ... where x (B, T, n) has none, and which of their rows do; None for all."""
        given = self.options.mask(batch)
        mask: Any = ...
        if given is not None:
            given = given.to(call.x.device, torch.bool)
            if call.tokens is not None and call.tokens.numel() == given.numel():
                given = given.flatten()[call.tokens]
            mask = given if call.x.shape[:-1] == given.shape else ...
        inputs = reader.weight[0].numel() // reader.bits
        per_input = min(ROWS_PER_INPUT, max(LEAST_PER_INPUT, MOST_NUMBERS // inputs**2))
        most = -(-max(LEAST_ROWS, per_input * inputs) // len(self.passes.batches))
        count = reader.count_rows(call.x[mask])
        return mask, self._draw_rows(most, count) if count > most else None

    def _draw_rows(self, most: int, count: int) -> Tensor:
        """Numbers of rows, one from each of `most` equal parts of all of them, drawn at random.

        Evenly spaced ones would meet the same few places of every image or text: a GPT then lost more with more data.
        """
        drawn = torch.rand(most, dtype=torch.float64, device=self.generator.device, generator=self.generator)
        drawn += torch.arange(most, device=drawn.device)
        return (drawn * (count / most)).long().clamp_(max=count - 1)
