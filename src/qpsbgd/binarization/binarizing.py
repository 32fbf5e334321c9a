"""A trained network with one or a few bits per weight, layer by layer, without training it."""

from __future__ import annotations

import copy as copying
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from qpsbgd.binarization.layer_kinds import binary_like, fill, is_candidate, matrices, refusal
from qpsbgd.binarization.layer_report import LayerLoss, Report
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.passes import Passes
from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.nn import BinaryLayer
from qpsbgd.solvers import Solver, make_solver

RIDGE = 0.01
"""What is added to the diagonal of Q, as a share of its mean: it keeps Q definite, and weights of silent inputs near."""
LEAST_ROWS, ROWS_PER_INPUT = 16384, 16
"""Rows of inputs that a layer's Q is made of at most, or this many per input if that is more."""

Select = Collection[str] | Callable[[str, nn.Module], bool] | None


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
    bias: bool = True,
    rows: Callable[[Any], Tensor | None] | None = None,
    seed: int = 0,
    copy: bool = True,
    progress: Callable[[LayerLoss], None] | None = None,
) -> Binarized:
    """A copy of a trained model whose layers have binary weights with a scale per output, and a report.

    Args:
        model: The trained model.
        batches: Calibration data, a few hundred samples: tensors, tuples of arguments, or dictionaries of keyword
            arguments. Read once.
    """
    data = list(batches)
    if not data:
        raise ValueError("binarize needs calibration data: give at least one batch of inputs")
    work = copying.deepcopy(model) if copy else model
    device = _device(work)
    data = [tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch) for batch in data]
    run = _Run(work, data, bits, solver, rounds, seconds, levels, bias, rows, seed, progress)
    modes = [(module, module.training) for module in work.modules()]
    work.eval()
    try:
        return run.made(layers, first=first, last=last)
    except BaseException:
        run.undo()
        raise
    finally:
        for module, mode in modes:
            module.training = mode


def _device(model: nn.Module) -> torch.device:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise ValueError(f"the model must be on one device, got {', '.join(sorted(map(str, devices)))}; move it first")
    return next(iter(devices), torch.device("cpu"))


class _Run:
    """One call of `binarize`."""

    def __init__(
        self,
        model: nn.Module,
        data: list[Any],
        bits: Any,
        solver: Any,
        rounds: int,
        seconds: float | None,
        levels: str,
        bias: bool,
        rows: Any,
        seed: int,
        progress: Any,
    ) -> None:
        self.model, self.data, self.bits, self.bias, self.progress = model, data, bits, bias, progress
        self.rounds, self.seconds, self.tied, self.mask = rounds, seconds, levels == "ternary", rows or _attention_mask
        self.solver = solver if solver in ("kicks", "feedback", "rounding") else make_solver(solver)
        self.generator = torch.Generator(_device(model)).manual_seed(seed)
        self.passes = Passes(model, data)
        self.done: list[Callable[[], None]] = []

    def undo(self) -> None:
        for back in reversed(self.done):
            back()

    def made(self, layers: Select, *, first: bool, last: bool) -> Binarized:
        calls = self.passes.calls()
        names = {module: name for name, module in self.model.named_modules()}
        order = [module for module in calls if is_candidate(module)]
        chosen, kept = self._chosen(order, names, calls, layers, first=first, last=last)
        norms = {
            m
            for m in calls
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and calls[m] == 1 and m.track_running_stats
        }
        work = {layer: matrices(layer).numel() * matrices(layer).shape[1] for layer in chosen}
        rows, begun = [], False
        with self.passes.watching():
            for module in calls:
                if module in chosen:
                    begun = True
                    until = None
                    if self.seconds is not None:
                        until = self.seconds * work[module] / sum(work.values())
                    rows.append(self._layer(module, names[module], until))
                    if self.progress is not None:
                        self.progress(rows[-1])
                elif module in norms and begun:
                    self._norm(module)
        return Binarized(self.model, Report(tuple(rows), kept))

    def _chosen(self, order, names, calls, layers, *, first, last):
        sharing = Counter(p for m in self.model.modules() for p in m._parameters.values() if p is not None)
        candidates = [m for m in self.model.modules() if is_candidate(m)]
        reasons = {}
        for m in candidates:
            why = refusal(m, sharing)
            if not why and not calls[m]:
                why = "no calibration batch reaches it"
            if not why and calls[m] > 1:
                why = "it is used more than once"
            if why:
                reasons[m] = why
        by_name = {names[m]: m for m in candidates}
        if layers is None:
            left = {*(order[:1] if not first else ()), *(order[-1:] if not last else ())}
            wanted = [m for m in candidates if m not in left]
        elif callable(layers):
            wanted = [m for m in candidates if layers(names[m], m)]
        else:
            if unknown := sorted(set(layers) - set(by_name)):
                raise ValueError(
                    f"layers names what cannot be binarised: {', '.join(unknown)}; there are {', '.join(by_name)}"
                )
            wanted = [by_name[name] for name in layers]
            if bad := [f"{names[m]} ({reasons[m]})" for m in wanted if m in reasons]:
                raise ValueError(f"these layers cannot be binarised: {', '.join(bad)}")
        kept = {names[m]: reasons[m] for m in wanted if m in reasons}
        if kept:
            listed = ", ".join(f"{name} ({why})" for name, why in kept.items())
            warnings.warn(
                f"these layers stay real-valued: {listed}; leave them out with `layers` if that is meant", stacklevel=4
            )
        chosen = {m for m in wanted if m not in reasons}
        if not chosen:
            raise ValueError(
                "there is nothing to binarise: the first and the last layer stay real-valued unless first=True and last=True are given"
            )
        return chosen, kept

    def _layer(self, layer: nn.Module, name: str, seconds: float | None) -> LayerLoss:
        weights = matrices(layer)
        groups, inputs, outputs = weights.shape
        moments = Moments(groups, inputs, weights.device)
        reader = binary_like(layer, bits=1, bias=False, device="meta")
        most = -(-max(LEAST_ROWS, ROWS_PER_INPUT * inputs) // len(self.data))

        def take(batch: Any, x: Tensor) -> None:
            mask = self.mask(batch)
            if mask is not None and x.shape[:-1] == mask.shape:
                x = x[mask.to(x.device, torch.bool)]
            count = reader.num_rows(reader(x.to("meta", torch.promote_types(x.dtype, reader.weight.dtype))).shape)
            at = self._spread(most, count) if count > most else None
            try:
                moments.add(reader.input_rows(x, at))
            except ValueError as error:
                raise ValueError(f"{name}: {error} in a calibration batch") from None

        self.passes.inputs(layer, take)
        if not moments.count:
            raise ValueError(f"{name} got no rows from any calibration batch")
        begun = time.monotonic()
        with_bias = self.bias or getattr(layer, "bias", None) is not None
        raw = moments.covariance() if with_bias else moments.second_moment()
        metric = raw.clone()
        unit = raw.diagonal(dim1=1, dim2=2).mean(1)
        metric.diagonal(dim1=1, dim2=2).add_((RIDGE * unit + (unit <= 0))[:, None])
        bits = 2 if self.tied else self.bits if isinstance(self.bits, int) else self.bits.get(name, 1)
        until = None if seconds is None else begun + seconds
        effort = Effort(self.solver, self.rounds, self.generator, until)
        fits, lost = [], Counter()
        for own, own_raw, own_weights in zip(metric, raw, weights, strict=True):
            fit = Fit.rounded(own, own_weights, bits=bits, tied=self.tied)
            for stage in fit.improve(effort):
                rest = own_weights - fit.approximation()
                lost[stage] += float((rest * (own_raw @ rest)).sum())
            fits.append(fit)
        whole = float(torch.einsum("gnm,gnk,gkm->", weights, raw, weights))
        binary = binary_like(layer, bits=bits, bias=with_bias)
        fill(binary, layer, fits, moments.mean if with_bias else None)
        self._replace(layer, binary)
        share = {stage: loss / whole if whole > 0 else 0.0 for stage, loss in lost.items()}
        took = time.monotonic() - begun
        return LayerLoss(
            name, (groups * outputs, inputs), bits, share["rounding"], share.get("feedback"), share.get("search"), took
        )

    def _spread(self, most: int, count: int) -> Tensor:
        """Numbers of rows, one from each of `most` equal parts of all of them, drawn at random.

        Evenly spaced ones would meet the same few places of every image or text: a GPT then lost more with more data.
        """
        drawn = torch.rand(most, dtype=torch.float64, device=self.generator.device, generator=self.generator)
        drawn += torch.arange(most, device=drawn.device)
        return (drawn * (count / most)).long().clamp_(max=count - 1)

    def _replace(self, layer: nn.Module, binary: BinaryLayer) -> None:
        if layer is self.model:
            raise ValueError("give a model that contains the layer, such as nn.Sequential(layer)")
        for parent in list(self.model.modules()):
            for name, child in list(parent._modules.items()):
                if child is layer:
                    setattr(parent, name, binary)
                    self.done.append(lambda parent=parent, name=name: setattr(parent, name, layer))
        self.passes.watch(binary)

    def _norm(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        count, total, squares = 0, 0.0, 0.0

        def take(_: Any, x: Tensor) -> None:
            nonlocal count, total, squares
            x = x.double().movedim(1, -1).reshape(-1, x.shape[1])
            count += len(x)
            total = total + x.sum(0)
            squares = squares + x.square().sum(0)

        self.passes.inputs(norm, take)
        if not count:
            return
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0) * (count / max(count - 1, 1))
        old = norm.running_mean.clone(), norm.running_var.clone()
        self.done.append(lambda: (norm.running_mean.copy_(old[0]), norm.running_var.copy_(old[1])))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)


def _attention_mask(batch: Any) -> Tensor | None:
    mask = batch.get("attention_mask") if isinstance(batch, dict) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
