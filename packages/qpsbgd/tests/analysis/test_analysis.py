import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import QPSBGD, ProxQuant
from qpsbgd.analysis import DirectionTest, direction_test, fixed_points, full_batch
from qpsbgd.nn import BinaryConv2d, BinaryLinear


def blobs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(40) % 2
    inputs = torch.randn(40, 5, generator=generator) + 2 * (2 * targets[:, None] - 1)
    return inputs, targets.float()


def model_and_loss(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(BinaryLinear(5, 6), nn.Hardtanh(), nn.Dropout(0.5), BinaryLinear(6, 1))
    return model, lambda output, target: F.binary_cross_entropy_with_logits(output[:, 0], target)


def test_the_full_batch_gradient_is_that_of_autograd():
    model, loss = model_and_loss()
    data = blobs()
    seen = full_batch(model, data, loss)
    model.eval()
    loss(model(data[0]), data[1]).backward()
    assert [part.name for part in seen] == ["0", "3"]
    for part in seen:
        torch.testing.assert_close(part.gradient, part.layer.weight.grad)


def test_looking_changes_nothing():
    model, loss = model_and_loss()
    optimizer = QPSBGD(model, solver="descent")
    loss(model(blobs()[0]), blobs()[1]).backward()
    before = copy.deepcopy(model.state_dict())
    grads = [p.grad.clone() for p in model.parameters()]
    sums = [layer.tape.read().sums for layer in (model[0], model[3])]
    fixed_points(model, blobs(), loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(grad, p.grad) for grad, p in zip(grads, model.parameters(), strict=True))
    assert all(torch.equal(own, m.tape.read().sums) for own, m in zip(sums, (model[0], model[3]), strict=True))
    assert model.training
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_real_weights_in_training_do_not_reach_the_analysis():
    model, loss = model_and_loss()
    expected = full_batch(model, blobs(), loss)[0].gradient
    ProxQuant(model, rate=0.1)
    torch.testing.assert_close(full_batch(model, blobs(), loss)[0].gradient, expected)
    assert model[0].latent_forward


@pytest.mark.parametrize("seed", range(2))
def test_weights_that_hold_stay_and_others_move_as_theorem_1_says(seed):
    # One layer, full batch, no momentum: exactly P-SBGD.
    torch.manual_seed(seed)
    layer = BinaryLinear(5, 3, gain=1.0)
    data = torch.randn(30, 5), torch.randn(30, 3)
    found = fixed_points(layer, data, F.mse_loss, scale="literal")
    weight = layer.weight.detach().clone()
    optimizer = QPSBGD(layer, lr=0.01, projection="printed", solver="exact", clip=None)
    F.mse_loss(layer(data[0]), data[1]).backward()
    optimizer.step()
    away_from_zero = (layer.weight.detach() - weight) * weight > 0
    assert torch.equal(found.holds[""], away_from_zero)
    assert found.proven


def test_a_fixed_point_is_recognised_and_training_stays_there():
    # w = (1, 1) on data that asks for it. As printed, a gradient this small is best met by gᵀz = 0, and w is left.
    layer = BinaryLinear(2, 1, gain=1.0)
    with torch.no_grad():
        layer.weight.fill_(0.05)
    data = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.tensor([[1.0], [0.0]])
    assert not fixed_points(layer, data, F.binary_cross_entropy_with_logits, scale="literal").is_fixed_point
    found = fixed_points(layer, data, F.binary_cross_entropy_with_logits)
    assert found.is_fixed_point and found.fraction == 1.0
    optimizer = QPSBGD(layer, lr=0.1, solver="exact", momentum=0.0, clip=None)
    for _ in range(50):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(layer(data[0]), data[1]).backward()
        optimizer.step()
    assert layer.binary_weight.tolist() == [[1.0, 1.0]]


def test_the_direction_test_gives_the_papers_z():
    assert DirectionTest(2285, 3915).z == pytest.approx(10.47, abs=0.01)
    assert DirectionTest(2103, 4683).z == pytest.approx(-6.97, abs=0.01)
    assert (DirectionTest(1, 2) + DirectionTest(3, 4)) == DirectionTest(4, 6)
    assert DirectionTest(0, 0).z == 0


def test_agreeing_entries_are_counted_and_zeros_left_out():
    projected = torch.tensor([1.0, -1.0, 1.0, 0.0, -1.0])
    gradient = torch.tensor([0.3, 0.2, 5.0, 1.0, 0.0])
    assert direction_test(projected, gradient) == DirectionTest(2, 3)
    assert direction_test([projected, projected], [gradient, -gradient]) == DirectionTest(3, 6)


def test_bad_data_is_refused():
    model, loss = model_and_loss()
    with pytest.raises(ValueError, match="no samples"):
        full_batch(model, [], loss)
    with pytest.raises(ValueError, match="no binary layer"):
        full_batch(nn.Linear(2, 2), blobs(), loss)
    with pytest.raises(ValueError, match="shapes differ"):
        direction_test(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="finite"):
        direction_test(torch.ones(1), torch.tensor([torch.nan]))


def test_layers_with_groups_are_refused_by_name():
    model = nn.Sequential(BinaryConv2d(4, 4, 3, groups=2), nn.Flatten())
    with pytest.raises(ValueError, match="layers of one group, but 0 has several"):
        full_batch(model, (torch.randn(2, 4, 3, 3), torch.zeros(2, dtype=torch.long)), F.cross_entropy)


def test_a_model_that_is_one_layer_is_named_as_the_model():
    found = fixed_points(BinaryLinear(6, 2), (torch.randn(8, 6), torch.randn(8, 2)), F.mse_loss)
    assert "the model: " in repr(found)
