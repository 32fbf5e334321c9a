"""Loads saved models with their binary layers."""

import copy
import pickle
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.nn.conversion import binary_like, expose_layers, is_converted, replace_modules
from qpsbgd.nn.layers import MARK, BinaryLayer, saved_options


def load(path: str | PathLike[str], model: nn.Module) -> nn.Module:
    """The binary model saved in a file: a copy of `model`, with binary layers where the file has them.

    The file was written by `torch.save(binary.state_dict(), path)`, safetensors' `save_file` or Hugging Face's
    `save_pretrained`, or is a checkpoint with the state under "state_dict", as Lightning writes it. Whole folders of
    `save_pretrained` are read by `from_pretrained`, after `import qpsbgd.nn.huggingface`.

    Args:
        path: The file.
        model: A model of the same architecture before `convert` or `binarize`, with any weights; or a binary one.

    Raises:
        ValueError: The file does not hold such a state, or has binary layers that the model cannot have.
        RuntimeError: The state does not fit the model, as `load_state_dict` says it.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(
            f"{path} must be a file, but is a folder; if save_pretrained wrote it, import qpsbgd.nn.huggingface and "
            "call from_pretrained"
        )
    state = _state(path)
    marks = {key.removesuffix(MARK): mark for key, mark in state.items() if key.endswith(MARK)}
    layers = {at.rstrip("."): {**saved_options(mark), "bias": f"{at}bias" in state} for at, mark in marks.items()}
    model = with_binary_layers(copy.deepcopy(model), layers)
    named = list(model.named_parameters(remove_duplicate=False))
    saved = {tensor: state[name] for name, tensor in named if name in state}
    # Of tensors that are shared, a file of safetensors has only one.
    model.load_state_dict(state | {name: saved[tensor] for name, tensor in named if tensor in saved})
    return model


def _state(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: Any = load_file(path)
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} must hold a state dict, but holds other objects or is damaged; a whole model that torch.save "
                "wrote is read by torch.load(path, weights_only=False), which runs code from the file"
            ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not any(isinstance(key, str) and key.endswith(MARK) for key in state):
        raise ValueError(f"{path} must hold the state of a model with binary layers, but has none; use load_state_dict")
    return state


def with_binary_layers(model: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """The model itself, with fresh binary layers of these options in the places of its real-valued ones."""
    model = expose_layers(model, lambda name: not any(at.startswith(f"{name}.") for at in layers), recurrent=True)
    named = dict(model.named_modules())
    fits = {name for name, module in named.items() if isinstance(module, BinaryLayer) or is_converted(module)}
    unfit = [name for name in layers if name not in fits]
    if unfit:
        raise ValueError(
            f"what was saved has binary layers that the model cannot have: {', '.join(unfit)}; give a model of the "
            "same architecture, as it was before convert or binarize"
        )
    real = {named[name]: options for name, options in layers.items() if not isinstance(named[name], BinaryLayer)}
    return replace_modules(
        model, {old: binary_like(old, **options).train(old.training) for old, options in real.items()}
    )
