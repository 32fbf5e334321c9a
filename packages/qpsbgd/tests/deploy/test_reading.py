import numpy as np
import pytest
import torch
from graph_networks import trained
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv1d, BinaryLinear, QuantActivation, SignActivation


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)


class Branching(Layer):
    def forward(self, x):
        return self.layer(x) if x.mean(1) > 0 else x


class Viewing(Layer):
    def forward(self, x):
        return self.layer(x.view(len(x), -1))


class Calls(Layer):
    """Does something to what the layer gives."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x))


class Hooked(BinaryLinear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_hook():
    layer = BinaryLinear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output)
    return layer


def not_finite(layer):
    with torch.no_grad():
        layer.weight[0] = torch.nan
    return layer


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.MultiheadAttention(4, 2), r"\(MultiheadAttention\) cannot be expressed; put .*ProjectedAttention"),
        (nn.ELU(), r"body\.1 \(ELU\) cannot be expressed; write nn\.SiLU\(\) or nn\.LeakyReLU\(\)"),
        (nn.Bilinear(4, 4, 4), r"body\.1 \(Bilinear\) cannot be expressed; supported are .*BinaryLinear"),
        (Branching(), r"body\.1\.gt calls gt, .* must do the same for every input.* \(in test_reading\.py:\d+\)"),
        (Viewing(), r"body\.1 \(Viewing\) could not be traced at test_reading\.py:\d+ .*not from len"),
        (Calls(torch.cumsum), r"body\.1 \(Calls\) could not be traced"),
        (
            Calls(lambda x: x.cumsum(1)),
            r"body\.1\.cumsum calls cumsum, which .* write x @ matrix.* \(in test_reading\.py:\d+\)",
        ),
        (Calls(lambda x: torch.fft.fft(x)), r"body\.1\.\w+ calls fft_fft, which cannot be expressed"),
        (Calls(lambda x: 1 / x), r"body\.1\.truediv divides by a value that the network computes"),
        (Calls(lambda x: x / 0.0), r"body\.1\.truediv must have a finite number"),
        (Calls(lambda x: x.mean()), r"body\.1\.mean must say which dimensions"),
        (Calls(lambda x: x[0]), r"body\.1\.getitem must take the whole batch"),
        (Calls(lambda x: x[:, ::2]), r"body\.1\.getitem depends on the shape of a sample: give input_shape"),
        (Calls(lambda x: x.view(x.shape[0] * 2, -1)), r"body\.1\.mul computes with the size of the batch"),
        (Calls(lambda x: x.view(5, -1)), r"body\.1\.view must keep the batch dimension first"),
        (
            Calls(lambda x: x.view(x.shape[0], x.shape[1])),
            r"body\.1\.\w+ depends on the shape",
        ),
        (Calls(lambda x: torch.cat([x, torch.ones(1, 4)], 1)), r"body\.1\.cat depends on the shape of a sample"),
        (Calls(lambda x: x.T), r"reads \.T, which cannot be expressed"),
        (nn.Softmax(), r"body\.1 \(Softmax\) must say along which dimension"),
        (with_hook(), r"\(body\.1 \(BinaryLinear\) has forward hooks"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), r"body\.1 \(ParametrizedLinear\)"),
        (nn.BatchNorm1d(4, track_running_stats=False), r"body\.1 \(BatchNorm1d\) has no running statistics"),
        (nn.MaxPool2d(2, ceil_mode=True), r"body\.1 depends on the shape of a sample"),
        (nn.MaxPool2d(2, return_indices=True), r"body\.1 \(MaxPool2d\) returns indices"),
        (nn.AvgPool2d(2, divisor_override=3), r"body\.1 \(AvgPool2d\) has divisor_override"),
        (nn.Flatten(0), r"body\.1 \(Flatten\) must keep the batch dimension"),
        (nn.Unflatten(0, (1, 4)), r"body\.1 \(Unflatten\) must unflatten a dimension other than the batch"),
        (not_finite(BinaryLinear(4, 4)), r"body\.1 \(BinaryLinear\) holds NaN"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(module, message):
    model = nn.Sequential()
    model.body = nn.Sequential(BinaryLinear(4, 4), module)
    with pytest.raises(ValueError, match=f"^{message}" if message.startswith("body") else message):
        pack(model)


def test_a_single_layer_with_a_forward_or_hooks_of_its_own_is_not_taken_for_a_plain_one():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model, x = Doubled(4, 3), torch.randn(5, 4)
    np.testing.assert_allclose(pack(model)(x.numpy()), model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    for layer, message in ((Hooked(4, 4), r"\(Hooked\) cannot be expressed"), (with_hook(), "has forward hooks")):
        with pytest.raises(ValueError, match=f"the model .*{message}"):
            pack(layer)


def test_what_the_output_does_not_need_is_left_out():
    packed = pack(Calls(lambda x: (x.tanh(), x.sigmoid())[1]))
    assert [type(one).__name__ for one in packed.operations] == ["Dense", "Scale", "Activation"]


def test_a_batch_norm_behind_a_dense_layer_takes_samples_of_one_dimension_only():
    """Of more dimensions it would take another one for units than the layer does."""
    packed = pack(trained(nn.Sequential(BinaryLinear(4, 4, bias=True), nn.BatchNorm1d(4))))
    with pytest.raises(ValueError, match=r"0 \(Scale\) takes 4 units, got shape \(4, 4\)"):
        packed(np.zeros((2, 4, 4)))


def test_sizes_of_a_sample_are_known_where_they_are_given():
    class Sized(Layer):
        def forward(self, x):
            return self.layer(x.view(x.shape[0], x.shape[1] * x.size(2)))

    model, inputs = Sized(), torch.randn(3, 2, 2)
    packed = pack(model, input_shape=(2, 2))
    np.testing.assert_allclose(packed(inputs.numpy()), model(inputs).detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="positive sizes"):
        pack(model, input_shape=(0, 2))


def test_something_that_is_not_a_model_is_refused():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        pack({"weight": torch.zeros(3)})


SIGN, QUANT, POOL, ROW, CONV = SignActivation(), QuantActivation(), nn.MaxPool1d(2), nn.Flatten(), BinaryConv1d(4, 3, 2)


@pytest.mark.parametrize(
    ("layers", "kinds"),
    [
        ((SIGN, POOL, ROW), "Sign MaxPool Reshape Spins"),
        ((SIGN, ROW, SIGN), "Reshape Sign Spins"),  # real numbers are easier to move
        ((QUANT, ROW), "Reshape Quantize Scale"),
        ((nn.ReLU(), POOL, SIGN), "Clip MaxPool Sign Spins"),
        ((BinaryConv1d(4, 3, 2, gain=1),), "Convolution"),
        ((CONV, nn.BatchNorm1d(3), nn.BatchNorm1d(3)), "Convolution Scale"),
        ((SIGN, nn.Dropout(), nn.ReLU()), "Sign Spins Clip"),
        ((QUANT, SIGN), "Quantize Scale Sign Spins"),
        ((SIGN, QUANT), "Sign Spins Quantize Scale"),
        ((SIGN, BinaryConv1d(4, 3, 2, bits=2), SIGN), "Sign Spins Convolution Scale Sign Spins"),
        ((nn.SiLU(), SIGN), "Clip Scale Combine Sign Spins"),
        ((SIGN, CONV, POOL, nn.ReLU(), nn.BatchNorm1d(3), QUANT), "Sign Convolution MaxPool Requantize Scale"),
    ],
)
def test_what_belongs_together_becomes_one_operation(layers, kinds):
    assert " ".join(type(one).__name__ for one in pack(nn.Sequential(*layers), input_shape=(4, 6)).operations) == kinds


class Named(dict):
    """As results of transformers: a mapping with attributes."""

    __getattr__ = dict.__getitem__

    def __init__(self, **parts):
        super().__init__(parts)
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (lambda x: (x, x), r"\[0\]"),
        (lambda x: [x], r"\[0\]"),
        (lambda x: {"logits": x, "other": x}, r"\['logits'\]"),
        (lambda x: Named(logits=x, other=x), r"\.logits"),
        (lambda x: {}, r"\[''\]"),
    ],
)
def test_what_is_not_one_tensor_is_refused_with_the_part_to_return(function, part):
    with pytest.raises(ValueError, match=rf"must return one tensor, got \w+; .*return self\.model\(x\){part}$"):
        pack(Calls(function))


def test_a_model_with_other_arguments_is_packed_with_their_defaults():
    class Optional(Layer):
        def forward(self, x, scale=2.0, *rest, shift=1.0, **more):
            return scale * self.layer(x) + shift

    class Needing(Layer):
        def forward(self, x, mask, scale=2.0, *, keys):
            return self.layer(x)

    model, inputs = Optional(), torch.randn(3, 4)
    np.testing.assert_allclose(pack(model)(inputs.numpy()), model(inputs).detach().numpy(), atol=1e-6)
    with pytest.raises(
        ValueError, match=r"takes one input, but it takes mask, too|must take one input.* takes mask, too"
    ):
        pack(Needing())
