import copy
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import qpsbgd
from qpsbgd.nn import BinaryLinear, convert
from qpsbgd.nn.layers import MARK


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(20, 6), nn.Linear(6, 3)
    ).eval()


OPTIONS = {
    "magnitude": {},
    "learned": {"scale": "learned", "bits": 2},
    "constant": {"scale": None, "gain": 0.3},
    "inner": {"first": False, "last": False},
}


@pytest.mark.parametrize(
    ("suffix", "options"), [*zip(["pt", "safetensors"] * 2, OPTIONS.values(), strict=True)], ids=OPTIONS
)
def test_a_saved_state_becomes_the_binary_model_again(suffix, options, tmp_path):
    model, x = network(), torch.randn(7, 2, 5)
    binary, path = convert(model, **options), tmp_path / f"model.{suffix}"
    if suffix == "pt":
        torch.save(binary.state_dict(), path)
    else:
        save_file(binary.state_dict(), path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    before = copy.deepcopy(model.state_dict())
    loaded = qpsbgd.load(path, model)
    assert torch.equal(loaded(x), binary(x))
    assert repr(loaded) == repr(binary)
    assert torch.equal(qpsbgd.load(path, convert(model, **options))(x), binary(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_binarised_model_comes_back_with_its_biases_and_scales(tmp_path):
    model, x = network(), torch.randn(50, 2, 5)
    binary, _ = qpsbgd.binarize(model, [x], rounds=2, first=True)
    torch.save({"state_dict": binary.state_dict(), "epoch": 3}, tmp_path / "run.ckpt")
    assert torch.equal(qpsbgd.load(tmp_path / "run.ckpt", network())(x), binary(x))


def test_what_cannot_be_loaded_is_named(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(network().state_dict(), path)
    with pytest.raises(ValueError, match=r"model with binary layers, .*none"):
        qpsbgd.load(path, network())
    torch.save(convert(network()), path)
    with pytest.raises(ValueError, match="must hold a state dict, but holds other objects"):
        qpsbgd.load(path, network())
    torch.save(convert(network()).state_dict(), path)
    with pytest.raises(ValueError, match=r"binary layers .*cannot have: 4, 5;"):
        qpsbgd.load(path, network()[:4])
    with pytest.raises(ValueError, match="is a folder; if save_pretrained wrote it"):
        qpsbgd.load(tmp_path, network())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_binary_states_and_real_models_do_not_mix(options):
    model = network()
    binary = convert(model, **options)
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: .*"4\.{MARK}"'):
        model.load_state_dict(binary.state_dict())
    message = (
        "4: the state must hold the latent weights of a binary layer, but holds those of a real-valued one; load it"
    )
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message):
            binary.load_state_dict(model.state_dict(), strict=strict)


def test_layers_of_other_options_do_not_take_each_others_state():
    layer, other = BinaryLinear(4, 2), BinaryLinear(4, 2, gain=1.0)
    message = (
        "BinaryLinear: the state is of a binary layer with bits=1, scale=None, gain=0.5, but the layer has bits=1, "
        "scale=None, gain=1.0; build it with the same options, or take qpsbgd.load"
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        other.load_state_dict(layer.state_dict())


def test_a_layer_made_on_meta_saves_a_state_too():
    layer = BinaryLinear(4, 2, bits=2, device="meta").to_empty(device="cpu")
    torch.nn.init.normal_(layer.weight)
    other = BinaryLinear(4, 2, bits=2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
