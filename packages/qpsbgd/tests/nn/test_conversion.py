import copy
import math

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear, convert, sign


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same", padding_mode="circular"),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2, bias=False), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def binary_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, BinaryLayer)]


def test_messages_name_a_converted_layer_by_its_path():
    with pytest.raises(ValueError, match=r"without scales, got 0 \(BinaryConv2d\)"):
        QPSBGD(convert(network()), projection="printed")
    assert str(convert(network())[3][0]) == "3.0 (BinaryConv2d)"
    assert str(BinaryLinear(3, 2)).startswith("BinaryLinear(3, 2, ")


def test_every_layer_keeps_its_arguments_signs_and_bias():
    model = network()
    converted = convert(model)
    assert binary_names(converted) == ["0", "3.0", "5"]
    for name in ("0", "3.0", "5"):
        before, after = model.get_submodule(name), converted.get_submodule(name)
        assert torch.equal(after.binary_weight, sign(before.weight.detach()))
        assert (after.bias is None) == (before.bias is None)
        assert before.bias is None or torch.equal(after.bias, before.bias)
    conv = converted[0]
    assert (conv.padding, conv.padding_mode) == ("same", "circular")
    assert converted[3][0].stride == (2, 2)
    assert converted[3][0].groups == 2
    x = torch.randn(2, 1, 8, 8)
    assert converted(x).shape == model(x).shape
    assert isinstance(convert(nn.Conv1d(2, 3, 3)), BinaryConv1d)
    assert isinstance(conv, BinaryConv2d)


def test_the_model_itself_stays_as_it_is():
    model = network()
    before = copy.deepcopy(model.state_dict())
    converted = convert(model)
    assert binary_names(model) == []
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


class RootMeanSquareNorm(nn.Module):
    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt()


class Normalize(nn.Identity):
    """As torchvision names what makes pixels of bytes."""


@pytest.mark.parametrize(
    ("middle", "options", "scaling"),
    [
        (nn.ReLU(), {}, "learned"),
        (nn.BatchNorm1d(4), {}, "magnitude"),
        (nn.Sequential(RootMeanSquareNorm()), {}, "magnitude"),
        (Normalize(), {}, "learned"),
        (nn.ReLU(), {"scale": "magnitude"}, "magnitude"),
        (nn.BatchNorm1d(4), {"scale": None}, None),
    ],
)
def test_scales_are_learned_by_default_where_there_is_no_norm(middle, options, scaling):
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    layers = [m for m in convert(model, **options).modules() if isinstance(m, BinaryLinear)]
    assert [layer.scaling for layer in layers] == [scaling, scaling]


@pytest.mark.parametrize(("bits", "scale"), [(1, "learned"), (2, "magnitude"), (3, "learned")])
def test_binary_weights_have_the_mean_size_of_the_real_ones(bits, scale):
    layer = nn.Linear(200, 30)
    binary = convert(layer, bits=bits, scale=scale)
    mean = (binary.gain * binary.quantized_weight).abs().mean()
    torch.testing.assert_close(mean, layer.weight.detach().abs().mean(), rtol=0.01, atol=0)


@pytest.mark.parametrize(("size", "dtype"), [(1e-30, torch.float32), (1.0, torch.bfloat16), (1e30, torch.float64)])
def test_latent_weights_get_the_size_of_fresh_ones(size, dtype):
    layer = nn.Linear(100, 50, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(size * torch.randn(50, 100))
    binary = convert(layer)
    assert binary.weight.dtype == dtype
    rms = binary.weight.detach().double().square().mean().sqrt()
    assert rms == pytest.approx(binary.initial_bound / math.sqrt(3), rel=0.01)
    assert torch.equal(binary.binary_weight, sign(layer.weight.detach()))


def test_weights_of_several_bits_are_rounded_to_the_nearest_level():
    layer = nn.Linear(200, 100)
    binary = convert(layer, bits=3, scale=None)
    assert binary.weight.shape == (100, 3, 200)
    unit = layer.weight.detach() / layer.weight.detach().square().mean().sqrt()
    levels = binary.quantized_weight.unique()
    assert len(levels) == 8
    nearest = levels[(unit[..., None] - levels).abs().argmin(-1)]
    torch.testing.assert_close(binary.quantized_weight, nearest)
    planes = binary.weight.detach().square().mean((0, 2)).sqrt()
    torch.testing.assert_close(planes, torch.full((3,), binary.initial_bound / math.sqrt(3)))


def test_weights_that_are_all_zero_are_drawn_anew():
    layer = nn.Linear(20, 10)
    nn.init.zeros_(layer.weight)
    assert set(convert(layer).binary_weight.flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"first": False}, ["3.0", "5"]),
        ({"last": False}, ["0", "3.0"]),
        ({"first": False, "last": False}, ["3.0"]),
        ({"skip": ["3.0"]}, ["0", "5"]),
        ({"skip": ["3"]}, ["0", "5"]),
        ({"skip": ["3"], "last": False}, ["0"]),
    ],
)
def test_layers_can_be_left_out(options, names):
    assert binary_names(convert(network(), **options)) == names


def test_frozen_weights_and_evaluation_mode_are_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    converted = convert(model)
    assert not any(module.training for module in converted.modules())
    trained = {name for name, p in converted.named_parameters() if p.requires_grad}
    assert trained == {"0.bias", "1.weight", "1.scale"}


def test_a_module_used_in_two_places_is_converted_once():
    layer = nn.Linear(4, 4)
    converted = convert(nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)}))
    assert isinstance(converted["a"], BinaryLinear)
    assert converted["a"] is converted["b"][0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
        self.head.weight = self.embedding.weight


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.places = nn.Parameter(torch.zeros(1, 1, 4)), nn.Parameter(torch.zeros(6, 4))
        self.positions = nn.Parameter(torch.zeros(1, 6, 4))
        self.norm = nn.LayerNorm((3, 4))


def hooked():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ConvTranspose2d(1, 1, 3), r"other \(ConvTranspose2d has no binary form\)"),
        (nn.Conv3d(1, 1, 3), r"other \(Conv3d has no binary form\)"),
        (nn.LSTM(4, 4), r"other \(LSTM has no binary form\)"),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), r"other \(MultiheadAttention has no binary form\); "),
        (
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            r"other \(its weight is computed from other parameters\)",
        ),
        (nn.utils.spectral_norm(nn.Linear(4, 4)), r"other \(its weight is computed from other parameters\)"),
        (hooked(), r"other \(it has hooks, which would be lost\)"),
        (Places(), r"real-valued: other \(Places holds places itself\); name"),
        (nn.Sequential(nn.LSTM(4, 4), nn.LSTM(4, 4)), r"other\.0, other\.1 \(LSTM has no binary form\)"),
        (Tied(), r"other\.head \(it shares its weight with another module\)"),
    ],
)
def test_what_cannot_be_converted_stays_and_is_named_unless_skipped(module, message):
    model = nn.ModuleDict({"linear": nn.Linear(4, 4), "other": module})
    with pytest.warns(UserWarning, match=message):
        converted = convert(model)
    assert isinstance(converted["linear"], BinaryLinear)
    assert not any(name in ("other", "other.head") for name in binary_names(converted))
    assert binary_names(convert(model, skip=["other"])) == ["linear"]


def test_linear_layers_of_transformers_and_torch_geometric_are_converted():
    from torch_geometric.nn import Linear
    from transformers.pytorch_utils import Conv1D

    model, x = nn.Sequential(Conv1D(5, 4), Linear(5, 3, bias=False)), torch.randn(2, 4)
    nn.init.normal_(model[0].bias)
    converted = convert(model, scale=None, gain=1.0)
    assert binary_names(converted) == ["0", "1"]
    signs = [sign(layer.weight.detach()) for layer in model]
    torch.testing.assert_close(converted(x), (x @ signs[0] + model[0].bias) @ signs[1].T)
    with pytest.raises(ValueError, match="no shape yet: 0"):
        convert(nn.Sequential(Linear(-1, 3)))


def test_lazy_layers_are_refused_until_they_have_a_shape():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="no shape yet: 0;"):
        convert(model)
    model(torch.randn(2, 3))
    assert binary_names(convert(model)) == ["0", "1"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Sequential(nn.ReLU()), {}, "nothing to convert"),
        (nn.LSTM(2, 2), {}, r"the model, .. by name \(LSTM has no binary form\)"),
        (nn.Linear(2, 2), {"first": False}, "nothing to convert"),
        (nn.Linear(2, 2), {"skip": ["head"]}, "skip names modules that the model does not have: head"),
        (nn.Sequential(nn.Linear(2, 2)), {"skip": ["0.weight"]}, r"does not have: 0\.weight"),
        (nn.Linear(2, 2), {"bits": 0}, "bits must be"),
        (nn.Linear(2, 2), {"gain": -1, "scale": None}, "gain .*must be"),
        (nn.Linear(2, 2), {"gain": 1.0}, "give scale=None"),
        (nn.Linear(2, 2), {"scale": "mean"}, 'None, "learned" or "magnitude"'),
    ],
)
def test_bad_arguments_raise_and_say_what_must_hold(model, options, message):
    with pytest.raises(ValueError, match=message):
        convert(model, **options)


def test_weights_that_are_not_finite_are_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="the weight of 0 holds NaN"):
        convert(model)


def test_attention_becomes_four_binary_layers_that_compute_with_signs():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(attention.in_proj_bias)
    binary = convert(attention, scale=None)
    assert binary_names(binary) == ["query", "key", "value", "output"]
    signs = copy.deepcopy(attention)
    with torch.no_grad():
        for weight in (signs.in_proj_weight, signs.out_proj.weight):
            weight.copy_(sign(weight) / math.sqrt(8))
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(binary(x, x, x), signs(x, x, x))


def test_a_transformer_is_converted_as_a_whole_and_computes_the_same_in_evaluation():
    encoder = convert(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0))
    attention = [f"self_attn.{name}" for name in ("query", "key", "value", "output")]
    assert binary_names(encoder) == [*attention, "linear1", "linear2"]
    x = torch.randn(3, 5, 8)
    trained = encoder(x)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), trained)
    model = nn.TransformerEncoderLayer(8, 2, 16)
    assert binary_names(convert(model, skip=["self_attn"])) == ["linear1", "linear2"]
    assert isinstance(model.self_attn, nn.MultiheadAttention)


def test_attention_that_is_shared_or_has_hooks_stays_and_is_named():
    hooked = nn.MultiheadAttention(4, 2)
    hooked.register_forward_hook(lambda *_: None)
    tied = nn.ModuleList([nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)])
    tied[0].in_proj_weight = tied[1].in_proj_weight
    for module in (hooked, tied):
        with pytest.warns(UserWarning, match="MultiheadAttention has no binary form"):
            converted = convert(nn.ModuleDict({"linear": nn.Linear(4, 4), "other": module}))
        assert binary_names(converted) == ["linear"]
