import pytest
import torch
from torch import nn

import qpsbgd
from qpsbgd import QPSBGD, summary
from qpsbgd.nn import BinaryConv2d, BinaryLinear


def network(bits=1):
    return nn.Sequential(
        BinaryConv2d(2, 4, 3, padding=1, groups=2, bits=bits),
        nn.BatchNorm2d(4),
        nn.Hardtanh(),
        nn.Flatten(),
        BinaryLinear(4 * 25, 3, bias=True),
    )


def test_a_hand_computed_case():
    conv, norm, linear = summary(network(), (2, 5, 5)).rows
    assert (conv.name, conv.kind, conv.shape) == ("0", "BinaryConv2d", (4, 1, 3, 3))
    assert (conv.binary_weights, conv.real_parameters, conv.bytes, conv.float32_bytes) == (36, 0, 5, 144)
    assert conv.multiply_adds == 25 * 4 * 9
    assert (norm.binary_weights, norm.real_parameters, norm.bytes, norm.multiply_adds) == (0, 8, 32, None)
    assert (linear.binary_weights, linear.real_parameters, linear.bytes) == (300, 3, 38 + 12)
    assert (linear.float32_bytes, linear.multiply_adds) == (1212, 300)


def test_every_bit_counts_as_a_weight_and_the_shape_is_torchs_own():
    conv = summary(network(bits=3), (2, 5, 5)).rows[0]
    assert conv.shape == (4, 1, 3, 3)
    assert (conv.binary_weights, conv.bytes, conv.float32_bytes, conv.multiply_adds) == (108, 14, 144, 900)


def test_without_an_input_there_are_no_operations():
    found = summary(network())
    assert [row.multiply_adds for row in found.rows] == [None] * 3
    assert found.total.multiply_adds is None


def test_operations_of_a_batch_are_counted_per_sample():
    model = network()
    assert summary(model, inputs=torch.randn(7, 2, 5, 5)) == summary(model, (2, 5, 5))


def test_a_model_of_several_arguments():
    layer = qpsbgd.nn.BinaryGCNConv(3, 2)
    edges = torch.tensor([[0, 1], [1, 0]])
    assert summary(layer, inputs=(torch.randn(4, 3), edges)).total.multiply_adds == 6


def test_real_layers_are_counted_too():
    (row,) = summary(nn.Conv1d(2, 3, 3), (2, 10)).rows
    assert (row.name, row.binary_weights, row.real_parameters, row.multiply_adds) == ("", 0, 21, 8 * 18)


def test_a_layer_called_twice_works_twice_and_a_shared_parameter_counts_once():
    layer = nn.Linear(4, 4, bias=False)
    other = nn.Linear(4, 4, bias=False)
    other.weight = layer.weight
    found = summary(nn.Sequential(layer, layer, other), (4,))
    assert found.total.real_parameters == 16
    assert found.rows[0].multiply_adds == 32


def test_the_model_is_left_as_it_was():
    model = network().double()
    model[2].eval()
    optimizer = QPSBGD(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    summary(model, (2, 5, 5))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert [module.training for module in model] == [True, True, False, True, True]
    assert not any(module._forward_hooks for module in model)
    with pytest.raises(RuntimeError, match="no recorded pass"):
        optimizer.step()


def test_the_text_is_a_table_with_totals():
    text = str(summary(network(), (2, 5, 5)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "layer kind weight binary weights real bytes float32 bytes multiply-adds"
    assert lines[2] == "0 BinaryConv2d 4 × 1 × 3 × 3 36 0 5 144 900"
    assert lines[3] == "1 BatchNorm2d 4 0 8 32 32 –"
    assert lines[-1] == "total 336 11 87 1,388 1,200"
    assert "(model)" in str(summary(BinaryLinear(4, 3)))


def test_a_size_and_a_batch_together_are_refused():
    with pytest.raises(ValueError, match="give one of them"):
        summary(network(), (2, 5, 5), inputs=torch.randn(1, 2, 5, 5))
