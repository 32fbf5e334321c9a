"""A trained network with one or a few bits per weight, layer by layer, without training it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from qpsbgd.binarization.changes import Changes
from qpsbgd.binarization.layer_report import LayerLoss, Report
from qpsbgd.binarization.layer_run import LayerRun, Options
from qpsbgd.binarization.passes import Passes, arguments
from qpsbgd.binarization.selection import Select, select_layers
from qpsbgd.nn.conversion import attach_hf_config, copy_model
from qpsbgd.nn.layers import label_layers
from qpsbgd.nn.model_summary import summary
from qpsbgd.solvers import Solver


class Binarized(NamedTuple):
    """A model with binary layers, and a report on each of them."""

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
    targets: Literal["own", "float"] = "float",
    bias: bool = True,
    rows: Callable[[Any], Tensor | None] | None = None,
    seed: int = 0,
    copy: bool = True,
    progress: bool | Callable[[LayerLoss], None] = False,
) -> Binarized:
    """A copy of a trained model with binary weights and a scale per output, and a report.

    Layers are processed in the order of the data flow, each with the inputs produced by the already binary layers
    before it. The weights w of an output become Σ_b α_b s_b with s_b ∈ {−1, +1}ⁿ, such that the outputs change least;
    see `qpsbgd.binarization.planes` for the search. nn.Linear, nn.Conv1d, nn.Conv2d, the
    projections of nn.MultiheadAttention, the weights of nn.LSTM, nn.GRU and nn.RNN, torch_geometric's Linear and
    transformers' Conv1D and experts are replaced; everything else stays, but see `targets`. Calibration
    runs in evaluation mode and in the model's own precision.

    `QPSBGD` can train the result: the size of a latent weight reflects the cost of flipping its sign.

    Args:
        model: The trained model, on one device.
        batches: Calibration data, a few hundred typical inputs: a DataLoader or another iterable of
            tensors, tuples of arguments or dictionaries of keyword arguments. Items that `forward` does not take, such
            as targets, are ignored. Batches are read once, moved to the model's device and kept. If a dictionary has an
            "attention_mask" (B, T), only its unmasked tokens count.
        bits: Binary vectors per output, 1 to 8; or a number per layer, by name, 1 for those not named.
        layers: Names of the layers to binarise, or a function of name and module that selects them. By default all but
            the first and the last (embeddings and head in a transformer), and those that share their weight, have
            hooks, are never reached or are convolutions that are called twice; a warning names these, and other kinds
            of layers.
        first: Whether the default includes the first layer.
        last: Whether it includes the last layer.
        solver: "kicks" for the default search; "rounding" for signs with fitted scales; "feedback" for error
            feedback, as in GPTQ; or a solver's name or a `Solver`, for the layers' QUBO families.
        rounds: Kicks per layer and bit: more take longer and reduce the error.
        targets: "float" fits a layer to its outputs in the float network, and corrects errors in terms that are added
            to them, so that errors of earlier layers are compensated; real-valued layers after binary ones are refitted
            too. It takes a copy of the model and a second pass, and leaves norms unchanged. "own" fits a layer to the
            outputs of its real weights on its inputs in the binary network, and re-estimates batch norms after binary
            layers.
        bias: Let a layer's bias absorb the mean error, and give a bias to layers without one.
        rows: A function that returns a mask (B, T) of the tokens that count in a batch, or None.
        seed: Seed of the kicks.
        copy: Return a copy. False changes the model itself, once everything has succeeded.
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
    options = Options(bits, solver, rounds, targets, bias, rows, progress)
    device, data = _device(model), [arguments(model, batch) for batch in _as_list(batches)]
    data = [tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch) for batch in data]
    generator = torch.Generator(device).manual_seed(seed)
    precise = torch.inference_mode(False), torch.autocast(device.type, enabled=False)
    with precise[0], precise[1], Changes(copy_model(model) if copy else model) as changes, changes:
        changes.prepare()
        passes = Passes(changes.model, data)
        calls, reference = passes.calls(), None
        if targets == "float":
            reference = Passes(copy_model(changes.model), data)
            reference.calls()
        chosen = select_layers(changes.model, layers, calls=calls, unclear=passes.unclear, first=first, last=last)
        options.check_names(chosen)
        lines = LayerRun(changes, passes, options, generator, chosen, reference).losses(calls)
        label_layers(changes.model)
    attach_hf_config(changes.model, latents=False)
    return Binarized(changes.model, Report(lines, chosen.kept, summary(changes.model)))


def _as_list(batches: Iterable[Any]) -> list[Any]:
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        kind = type(batches).__name__
        raise TypeError(f"batches must be a list or an iterable of batches, got {kind}; a single batch goes as [x]")
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
