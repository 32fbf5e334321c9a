"""A trained network with one or a few bits per weight, layer by layer, without training it."""

from __future__ import annotations

import copy as copying
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from qpsbgd.binarization.changes import Changes
from qpsbgd.binarization.following import Reference, target_weights
from qpsbgd.binarization.layer_fit import LayerFit, fitted
from qpsbgd.binarization.layer_kinds import empty_like, fill, matrices, weight_like
from qpsbgd.binarization.layer_report import LayerLoss, Report
from qpsbgd.binarization.moments import Moments, NormMoments, NotFinite
from qpsbgd.binarization.passes import Passes, arguments
from qpsbgd.binarization.planes import SEARCHES, Effort
from qpsbgd.binarization.selection import Select, Selection, selected
from qpsbgd.binarization.wide_layers import Rows, WideLayer, rows_at_once
from qpsbgd.nn.convolutions import BinaryConvNd
from qpsbgd.nn.declaring import declare
from qpsbgd.nn.layers import label_layers
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_files.memory import check_memory
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE, COUNT, SECONDS, check_options

LEAST_ROWS, ROWS_PER_INPUT = 16384, 16
"""A layer's Q is made of at most so many rows of inputs, or so many per input if that is more, spread over all."""


class Binarized(NamedTuple):
    """A model with binary layers, and what became of each."""

    model: nn.Module
    report: Report


def binarize(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    bits: int | Mapping[str, int] = 1,
    layers: Select = None,
    first: bool = False,
    last: bool = False,
    solver: str | Solver = "kicks",
    rounds: int = 40,
    seconds: float | None = None,
    levels: Literal["binary", "ternary"] = "binary",
    targets: Literal["own", "float"] = "own",
    input_scales: bool = False,
    most_inputs: int = 4096,
    bias: bool = True,
    norms: bool = True,
    rows: Callable[[Any], Tensor | None] | None = None,
    seed: int = 0,
    copy: bool = True,
    progress: bool | Callable[[LayerLoss], None] = False,
) -> Binarized:
    """A copy of a trained model in which layers have binary weights with a scale per output, and a report.

    Layer by layer, in the order in which data flows, and with the inputs that the layers before, already binary,
    produce: the weights w of an output become Σ_b α_b s_b with s_b ∈ {−1, +1}ⁿ, such that the outputs change least. See
    `qpsbgd.binarization.planes` for the problem and how it is searched. nn.Linear, nn.Conv1d, nn.Conv2d, the
    projections of nn.MultiheadAttention, torch_geometric's Linear and transformers' Conv1D are replaced; everything
    else stays, but see `targets` and `norms`. The model computes in evaluation mode here, whatever its mode is, and in
    its own precision.

    `QPSBGD` can train the result: the latent weights have the sizes that flips of their signs would cost.

    Args:
        model: The trained model, on one device.
        batches: Calibration data, some hundred samples of what the model will see: a DataLoader or another iterable of
            tensors, tuples of arguments or dictionaries of keyword arguments. What `forward` does not take, such as
            targets, is left out. They are read once, moved to the model's device and kept. Of a dictionary with an
            "attention_mask" (B, T), only the tokens that it lets pass count.
        bits: Binary vectors per output, 1 to 8; or a number per layer, by name, 1 for those not named.
        layers: Names of the layers to binarise, or a function of name and module that says which. By default all but
            the first and the last, and those that share their weight, have hooks, are never reached or are used more
            than once; a warning names these.
        first: By default, binarise the first layer, too.
        last: Likewise the last one.
        solver: "kicks" for the search made for this; "rounding" for signs with fitted scales; "feedback" for error
            feedback, as GPTQ does it; or the name of a solver or a solver, for the layers' QUBO families.
        rounds: Kicks per layer and bit: more take longer and lose less.
        seconds: Instead of it, a time for the kicks of the whole model, shared out by the layers' sizes. Results then
            depend on the machine's speed.
        levels: "ternary" for weights {−α, 0, α}, which are two binary vectors of equal scale; without `bits`.
        targets: "own" for outputs as the layer's real weights give them, for the inputs that it has here; "float" for
            those of the float network, and what is missing where they are added to something: errors of the layers
            before are made up for, also by layers behind them that stay real-valued, which get other weights. Takes a
            copy of the model and a second pass, helps deep networks most, and leaves norms as they are. Layers wider
            than `most_inputs` take their own, or stay.
        input_scales: Also fit a factor per input or input channel, shared by all outputs.
        most_inputs: Layers with more inputs per output are cut into blocks of at most so many, which are done one after
            the other: memory grows with the square of this number (4096: a few matrices of 134 MB), not of the inputs.
        bias: Let the bias of a layer take the mean of what is lost, and give one to layers that have none.
        norms: Estimate the statistics of batch norms behind binary layers anew.
        rows: A function that returns, for a batch, a mask (B, T) of the tokens that count, or None.
        seed: Of the kicks.
        copy: Leave `model` as it is. False changes the model itself, and only when everything has succeeded.
        progress: True shows a bar (needs tqdm); a function is called after every layer with its line of the report.

    Raises:
        ValueError: There are no batches, a layer's inputs are not finite, the model is on several devices, there is
            nothing to binarise, or a layer that was named cannot be. The message names the layer.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from qpsbgd import binarize
        >>> model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> result = binarize(model, [torch.randn(64, 6)], layers=["0"], rounds=1)
        >>> type(result.model[0]).__name__, [row.name for row in result.report.rows]
        ('BinaryLinear', ['0'])
    """
    options = _Options(
        bits, solver, rounds, seconds, levels, targets, input_scales, most_inputs, bias, norms, rows, progress
    )
    device, data = _device(model), [arguments(model, batch) for batch in _listed(batches)]
    data = [tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch) for batch in data]
    generator = torch.Generator(device).manual_seed(seed)
    with Changes(copying.deepcopy(model) if copy else model) as changes, changes:
        changes.evaluate()
        changes.open_attention()
        passes = Passes(changes.model, data)
        calls, reference = passes.calls(), None
        if targets == "float":
            real = copying.deepcopy(changes.model)
            reference = Reference(Passes(real, data), dict(real.named_modules()))
            reference.passes.calls()
        chosen = selected(changes.model, layers, calls=calls, first=first, last=last)
        options.check_names(chosen)
        report = _Run(changes, passes, options, generator, chosen, reference).report(calls)
        label_layers(changes.model)
    declare(changes.model)
    return Binarized(changes.model, report)


def _listed(batches: Iterable[Any]) -> list[Any]:
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        kind = type(batches).__name__
        raise TypeError(
            f"batches must be a list or another iterable of batches, got {kind}; a single batch goes as [x]"
        )
    if not (data := list(batches)):
        raise ValueError("binarize needs calibration data: give at least one batch of the model's inputs")
    return data


def _device(model: nn.Module) -> torch.device:
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):  # its module is slow to import
        raise ValueError("binarize needs the model as it was before torch.compile; compile the result instead")
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model must be on one device, got parts on {listed}; move it with model.to(...)")
    device = next(iter(devices), torch.device("cpu"))
    if device.type == "meta":
        raise ValueError("the model must hold numbers, got one on the device meta; load its weights first")
    return device


@dataclass(frozen=True)
class _Options:
    """What `binarize` was asked for, checked."""

    bits: int | Mapping[str, int]
    solver: str | Solver
    rounds: int
    seconds: float | None
    levels: str
    targets: str
    input_scales: bool
    most_inputs: int
    bias: bool
    norms: bool
    rows: Callable[[Any], Tensor | None] | None
    progress: bool | Callable[[LayerLoss], None]

    def __post_init__(self) -> None:
        numbers = list(self.bits.values()) if isinstance(self.bits, Mapping) else [self.bits]
        if not all(isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= 8 for b in numbers):
            raise ValueError(f"bits must be whole numbers from 1 to 8, got {self.bits!r}")
        if self.levels not in ("binary", "ternary"):
            raise ValueError(f'levels must be "binary" or "ternary", got {self.levels!r}')
        if self.targets not in ("own", "float"):
            raise ValueError(f'targets must be "own" or "float", got {self.targets!r}')
        if self.levels == "ternary" and self.bits != 1:
            raise ValueError(
                f"ternary weights are two binary vectors of equal scale; leave bits out, got {self.bits!r}"
            )
        check_options(self, rounds=COUNT, seconds=SECONDS, most_inputs=AT_LEAST_ONE)
        if self.solver not in SEARCHES:
            object.__setattr__(self, "solver", make_solver(self.solver))

    def check_names(self, selection: Selection) -> None:
        names = set(self.bits) if isinstance(self.bits, Mapping) else set()
        if unknown := sorted(map(str, names - set(selection.names.values()))):
            raise ValueError(f"bits names layers that are not binarised: {', '.join(unknown)}")

    def bits_of(self, name: str) -> int:
        if self.levels == "ternary":
            return 2
        return self.bits if isinstance(self.bits, int) else self.bits.get(name, 1)

    def mask(self, batch: Any) -> Tensor | None:
        if self.rows is not None:
            given = self.rows(batch)
            if given is not None and not isinstance(given, Tensor):
                raise TypeError(f"rows must return a mask of the tokens that count or None, got {type(given).__name__}")
            return given
        mask = batch.get("attention_mask") if isinstance(batch, dict) else None
        return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


@contextmanager
def _shown(progress: bool | Callable[[LayerLoss], None], layers: int) -> Iterator[Callable[[LayerLoss], object]]:
    """What is called after every layer."""
    if not progress:
        yield lambda line: None
    elif callable(progress):
        yield progress
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True shows a bar, which needs tqdm: pip install tqdm") from error
        with tqdm(total=layers, desc="binarize", unit="layer") as bar:
            yield lambda line: (bar.set_postfix_str(line.name), bar.update())


@dataclass(frozen=True)
class _Run:
    """The layers one after the other."""

    changes: Changes
    passes: Passes
    options: _Options
    generator: torch.Generator
    selection: Selection
    reference: Reference | None

    def report(self, calls: Mapping[nn.Module, int]) -> Report:
        names = self.selection.names
        work = {layer: weights.numel() * weights.shape[1] for layer in names for weights in (matrices(layer),)}
        for layer, name in names.items():
            parameters = (layer.weight, getattr(layer, "bias", None))
            if not all(p.isfinite().all() for p in parameters if isinstance(p, Tensor)):
                raise ValueError(
                    f"{name}: its weight or bias holds NaN or infinite values; binarize needs a trained model"
                )
        lines: list[LayerLoss] = []
        of_norms = {module: name for name, module in self.changes.model.named_modules()}
        watching = nullcontext() if self.reference is None else self.reference.passes.watching()
        norms = self.options.norms and self.reference is None
        with self.passes.watching(), watching, _shown(self.options.progress, len(names)) as show:
            for module in calls:
                if module in names:
                    seconds = self.options.seconds
                    share = None if seconds is None else seconds * work[module] / sum(work.values())
                    lines.append(self._binarized(module, names[module], share))
                    show(lines[-1])
                elif lines and self.reference is not None and module in self.selection.real:
                    self._fitted_to_targets(module, self.selection.real[module])
                elif lines and norms and isinstance(module, _BatchNorm) and calls[module] == 1:
                    self._estimated(module, of_norms[module])
        return Report(tuple(lines), self.selection.kept)

    def _binarized(self, layer: nn.Module, name: str, seconds: float | None) -> LayerLoss:
        options, weights = self.options, matrices(layer)
        groups, inputs, outputs = weights.shape
        biased = options.bias or getattr(layer, "bias", None) is not None
        binary = empty_like(layer, bits=options.bits_of(name), bias=biased)
        shape: dict[str, Any] = {"bits": binary.bits, "tied": options.levels == "ternary"}
        wide = inputs > options.most_inputs
        if not wide and weights.device.type == "cpu":
            needed = 3 * groups * inputs**2 * weights.element_size()
            instead = f"set `most_inputs`, which is {options.most_inputs}, below that"
            check_memory(needed, f"{name}: the moments of {groups * inputs} inputs", instead)
        rows = self._rows(layer, name, binary, rows_at_once(inputs, options.most_inputs) if wide else None)
        start = time.monotonic()
        if wide:
            if options.input_scales:
                raise ValueError(
                    f"{name}: input_scales needs all {inputs} inputs at once; set most_inputs={inputs}, which takes "
                    "more memory, or leave this layer out of `layers`"
                )
            blocks = WideLayer(rows, weights, **shape, most_inputs=options.most_inputs, centred=biased)
            found = blocks.fitted(self._effort(seconds))
            bias = _own_bias(layer, blocks.mean, found)
        else:
            moments = self._moments(layer, name, binary, rows)
            start = time.monotonic()
            metrics = moments.covariance() if biased else moments.second_moment()
            if self.reference is not None:
                weights = target_weights(metrics, moments.cross(centred=biased), weights)
            kernel = math.prod(getattr(layer, "kernel_size", ())) if options.input_scales else None
            found = fitted(metrics, weights, **shape, effort=self._effort(seconds), kernel=kernel)
            bias = _own_bias(layer, moments.mean, found)
            if self.reference is not None:
                bias = moments.target_mean - torch.einsum("gn,gnm->gm", moments.mean, weights - found.errors)
        fill(binary, layer, found, bias if biased else None)
        self.changes.replace(layer, binary)
        self.passes.replaced(layer, binary)
        took = time.monotonic() - start
        return LayerLoss(name, (groups * outputs, inputs), binary.bits, **found.lost, seconds=took)

    def _fitted_to_targets(self, layer: nn.Module, name: str) -> None:
        """A layer that stays real-valued makes up for errors of those before it, too."""
        weights, weight, bias = matrices(layer), layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        if weights.shape[1] > self.options.most_inputs:
            return
        biased = isinstance(bias, Tensor)
        moments = self._followed(layer, name, empty_like(layer, bits=1, bias=biased))
        metrics = moments.covariance() if biased else moments.second_moment()
        weights = target_weights(metrics, moments.cross(centred=biased), weights)
        self.changes.set(weight, weight_like(layer, weights))
        if isinstance(bias, Tensor):
            missing = moments.target_mean - torch.einsum("gn,gnm->gm", moments.mean, weights)
            self.changes.set(bias, missing.flatten())

    def _moments(self, layer: nn.Module, name: str, reader: BinaryLinear | BinaryConvNd, rows: Rows) -> Moments:
        if self.reference is not None:
            return self._followed(layer, name, reader)
        groups, inputs, _ = matrices(layer).shape
        moments = Moments(groups, inputs)
        rows(moments.add)
        return moments

    def _followed(self, layer: nn.Module, name: str, reader: BinaryLinear | BinaryConvNd) -> Moments:
        """The moments of a layer's inputs, and of the outputs that it should have, by the float network."""
        assert self.reference is not None
        most = self._most_rows(matrices(layer).shape[1])

        def chosen(batch: Any, number: int, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
            mask = self._mask(batch, x)
            count = reader.count_rows(x if mask is None else x[mask])
            return mask, self._spread(most, count) if count > most else None

        with _naming(name):
            found = self.reference.moments(self.passes, layer, name=name, reader=reader, rows=chosen)
        if found is None:
            raise ValueError(f"{name}: no calibration batch has any rows for it")
        return found

    def _most_rows(self, inputs: int) -> int:
        """Rows of a batch that count at most."""
        return -(-max(LEAST_ROWS, ROWS_PER_INPUT * inputs) // self.passes.count)

    def _mask(self, batch: Any, x: Tensor) -> Tensor | None:
        """The tokens that count, where x (B, T, n) has tokens."""
        mask = self.options.mask(batch)
        return mask.to(x.device, torch.bool) if mask is not None and x.shape[:-1] == mask.shape else None

    def _effort(self, seconds: float | None) -> Effort:
        until = None if seconds is None else time.monotonic() + seconds
        return Effort(self.options.solver, self.options.rounds, self.generator, until)

    def _rows(self, layer: nn.Module, name: str, reader: BinaryLinear | BinaryConvNd, at_once: int | None) -> Rows:
        """All rows of a layer's inputs, or enough of them, the same in every pass; `at_once` of them at a time."""
        most = self._most_rows(matrices(layer).shape[1])
        drawn: dict[int, Tensor] = {}

        def each(sink: Callable[[Tensor], None]) -> None:
            numbers, found = itertools.count(), 0

            def take(batch: Any, x: Tensor) -> None:
                nonlocal found
                number, mask = next(numbers), self._mask(batch, x)
                x = x if mask is None else x[mask]
                count = reader.count_rows(x)
                if count > most and number not in drawn:
                    drawn[number] = self._spread(most, count)
                at = drawn.get(number)
                if at is None and at_once is not None:
                    at = torch.arange(count, device=x.device)
                found += count
                for part in (at,) if at_once is None or at is None else torch.split(at, at_once):
                    sink(reader.plain_rows(x, part))

            with _naming(name):
                self.passes.inputs(layer, take)
            if not found:
                raise ValueError(f"{name}: no calibration batch has any rows for it")

        return each

    def _spread(self, most: int, count: int) -> Tensor:
        """Numbers of rows, one from each of `most` equal parts of all of them, drawn at random.

        Evenly spaced ones would meet the same few places of every image or text: a GPT then lost more with more data.
        """
        drawn = torch.rand(most, dtype=torch.float64, device=self.generator.device, generator=self.generator)
        drawn += torch.arange(most, device=drawn.device)
        return (drawn * (count / most)).long().clamp_(max=count - 1)

    def _estimated(self, norm: _BatchNorm, name: str) -> None:
        if norm.running_mean is None or norm.running_var is None:
            return
        moments = NormMoments()
        with _naming(name):
            self.passes.inputs(norm, lambda _, x: moments.add(x))
        self.changes.set(norm.running_mean, moments.mean)
        self.changes.set(norm.running_var, moments.variance)


def _own_bias(layer: nn.Module, mean: Tensor, found: LayerFit) -> Tensor:
    """The bias that makes up for the mean error, (groups, m), for the mean of the inputs (groups, n)."""
    error, old = torch.einsum("gn,gnm->gm", mean, found.errors), getattr(layer, "bias", None)
    return error if not isinstance(old, Tensor) else error + old.detach().double().reshape(error.shape)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors of moments with the name of the layer."""
    try:
        yield
    except NotFinite as error:
        raise ValueError(f"{name}: {error}; look for them in the calibration data, or in the model") from None
