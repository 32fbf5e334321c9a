import math

import pytest
import torch
from torch import nn

from qpsbgd import Bop, StraightThrough
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.projections.polar import orthogonalized


def gradients(layer, count):
    torch.manual_seed(3)
    for _ in range(count):
        layer.weight.grad = torch.randn_like(layer.weight)
        yield


@pytest.mark.parametrize(
    ("update", "twin"),
    [
        ("adam", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1)),
    ],
)
def test_latent_weights_move_as_under_torchs_own_optimiser(update, twin):
    layer = BinaryLinear(6, 4, scale="magnitude")
    other = nn.Parameter(layer.weight.detach().clone())
    ours = StraightThrough(layer, 0.01, update, weight_decay=0.1)
    theirs = twin([other])
    for _ in gradients(layer, 5):
        other.grad = layer.weight.grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(layer.weight, other)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_torchs_own_up_to_its_half_precision():
    layer = BinaryLinear(12, 30, scale="magnitude")
    other = nn.Parameter(layer.weight.detach().clone())
    ours = StraightThrough(layer, 0.02, "muon", weight_decay=0.1)
    theirs = torch.optim.Muon([other], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="original")
    for _ in gradients(layer, 3):
        other.grad = layer.weight.grad.clone()
        ours.step()
        theirs.step()
    start = (layer.weight - other).abs().max().item()
    assert start < 0.02 * 0.05


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    matrix = torch.randn(2, *shape)
    found = torch.linalg.svdvals(orthogonalized(matrix))
    assert ((found > 0.5) & (found < 1.3)).all()
    assert not orthogonalized(torch.zeros(1, 3, 4)).any()


def test_a_weight_flips_once_bops_mean_gradient_has_its_sign_and_is_large():
    layer = BinaryLinear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, 0.3, -0.3, -0.3]]))
    optimizer = Bop(layer, lr=0.5, threshold=0.9)
    layer.weight.grad = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    optimizer.step()  # the mean is ±1
    assert layer.binary_weight.tolist() == [[-1, 1, -1, 1]]
    layer.weight.grad = torch.tensor([[-1.0, 1.0, 0.0, 0.0]])
    optimizer.step()  # 0, 0, ½, −½
    assert layer.binary_weight.tolist() == [[-1, 1, -1, 1]]


@pytest.mark.parametrize("update", ["adam", "muon", "bop"])
def test_they_train_convolutions_and_the_rest_of_a_model(update):
    torch.manual_seed(0)
    model = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))
    assert isinstance(model[0], BinaryConv2d)
    x = torch.randn(64, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()
    options = {"steps": 60, "real": True}
    optimizer = (
        Bop(model, threshold=3e-4, **options) if update == "bop" else StraightThrough(model, update=update, **options)
    )
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda layer: StraightThrough(layer, update="lion"), "update must be one of adam, sgd, muon"),
        (lambda layer: StraightThrough(layer, weight_decay=-1.0), "weight_decay must be"),
        (lambda layer: Bop(layer, threshold=0.0), "threshold must be"),
        (lambda layer: Bop(layer, lr=math.nan), "lr must be"),
    ],
)
def test_bad_options_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make(BinaryLinear(4, 2))
