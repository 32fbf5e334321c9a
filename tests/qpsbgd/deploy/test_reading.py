import pytest
import torch
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.deploy.operations import Threshold
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)

    def forward(self, x):
        return x + self.layer(x)


class Added(Residual):
    def forward(self, x):
        return self.layer(x) + 1


class Branching(Residual):
    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class Viewing(Residual):
    def forward(self, x):
        return self.layer(x.view(len(x), -1))


class Backwards(Residual):
    def forward(self, x):
        self.layer(x)
        return x


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
        (nn.GELU(), r"body\.1 \(GELU\) cannot be expressed; supported are .*BinaryLinear"),
        (nn.LSTM(4, 4), r"body\.1 \(LSTM\) cannot be expressed"),
        (Hooked(4, 4), r"body\.1 \(Hooked\) cannot be expressed"),
        (Residual(), r"body\.1 \(Residual\) is not a chain at add"),
        (Added(), r"body\.1 \(Added\) calls add"),
        (Branching(), r"body\.1 \(Branching\) could not be traced"),
        (Viewing(), r"body\.1 \(Viewing\) .*nn\.Flatten"),
        (Backwards(), r"body\.1 \(Backwards\) calls output"),
        (with_hook(), r"body\.1 \(BinaryLinear\) has forward hooks"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), r"body\.1 \(ParametrizedLinear\)"),
        (nn.BatchNorm1d(4, track_running_stats=False), r"body\.1 \(BatchNorm1d\) has no running statistics"),
        (nn.MaxPool2d(2, ceil_mode=True), r"body\.1 \(MaxPool2d\) has ceil_mode"),
        (nn.MaxPool2d(2, return_indices=True), r"body\.1 \(MaxPool2d\) returns indices"),
        (nn.AvgPool2d(2, divisor_override=3), r"body\.1 \(AvgPool2d\) has divisor_override"),
        (nn.AdaptiveAvgPool2d(2), r"body\.1 \(AdaptiveAvgPool2d\) must have output_size=1"),
        (nn.AdaptiveAvgPool2d((None, 1)), r"body\.1 \(AdaptiveAvgPool2d\) must have output_size=1"),
        (nn.Flatten(0), r"body\.1 \(Flatten\) must keep the batch dimension"),
        (nn.Unflatten(2, (1, 4)), r"body\.1 \(Unflatten\) must unflatten dimension 1"),
        (not_finite(BinaryLinear(4, 4)), r"body\.1 \(BinaryLinear\) holds NaN"),
        (not_finite(nn.BatchNorm1d(4)), r"body\.1 \(BatchNorm1d\) holds NaN"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(module, message):
    model = nn.Sequential()
    model.body = nn.Sequential(BinaryLinear(4, 4), module)
    with pytest.raises(ValueError, match=message):
        pack(model)


def test_a_norm_without_statistics_is_refused_behind_bits_too():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    with pytest.raises(ValueError, match="no running statistics"):
        pack(nn.Sequential(SignActivation(), BinaryLinear(4, 4), norm, SignActivation()))


def test_something_that_is_not_a_model_is_refused():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        pack({"weight": torch.zeros(3)})


def test_norm_and_gain_become_whole_numbers_behind_bits_alone():
    bits = pack(nn.Sequential(SignActivation(), BinaryLinear(4, 4), nn.BatchNorm1d(4), SignActivation()))
    assert [type(one).__name__ for one in bits.operations] == ["Sign", "Dense", "Threshold", "Spins"]
    real = pack(nn.Sequential(BinaryLinear(4, 4, bias=True), nn.BatchNorm1d(4), nn.Hardtanh()))
    assert [type(one).__name__ for one in real.operations] == ["Dense", "Scale", "Clip"]


def test_units_with_a_norm_of_negative_weight_are_flipped():
    model = nn.Sequential(SignActivation(), BinaryLinear(8, 3, gain=1), nn.BatchNorm1d(3, eps=0), SignActivation())
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([1.0, -1.0, 0.0]))
        model[2].running_mean.fill_(2.5)
        model[2].bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
    found = next(one for one in pack(model).operations if isinstance(one, Threshold))
    assert found.flipped.tolist() == [False, True, False]
    assert found.levels.tolist() == [3, 3, 9]  # at least 3, below 3, never


def test_pools_stay_where_a_norm_of_negative_weight_allows():
    def kinds(*layers):
        packed = pack(nn.Sequential(SignActivation(), BinaryConv2d(1, 2, 2), *layers, SignActivation()))
        return [type(one).__name__ for one in packed.operations][2:-1]

    assert kinds(nn.MaxPool2d(2), nn.BatchNorm2d(2)) == ["MaxPool", "Threshold"]
    assert kinds(nn.BatchNorm2d(2), nn.MaxPool2d(2)) == ["Threshold", "MaxPool"]
    assert kinds(nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.BatchNorm2d(2)) == ["Scale", "MaxPool", "Scale", "Sign"]
