import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.planes import Fit


def test_a_layer_of_zeros_loses_nothing():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[1].weight)
    model, report = binarize(model, [torch.randn(20, 6)], rounds=1)
    assert report.rows[0].name == "1"
    assert report.rows[0].search == report.rows[0].rounding == 0.0
    torch.testing.assert_close(model[1](torch.randn(5, 4)), model[1].bias.expand(5, 3))


def test_planes_of_negative_scale_are_turned_round():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    fit = Fit.rounded(torch.eye(7, dtype=torch.float64), weights, bits=1)
    planes, scales = fit.planes, fit.scales
    fit.planes = torch.where(torch.tensor([True, False, True]), -planes, planes)
    fit.refit()
    assert torch.equal(fit.planes, planes)
    torch.testing.assert_close(fit.scales, scales)
