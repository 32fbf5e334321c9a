import pytest
import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.following import target_weights
from qpsbgd.binarization.layer_fit import fitted
from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.binarization.wide_layers import WideLayer, rows_at_once


def effort(solver="kicks"):
    return Effort(solver, 20, torch.Generator().manual_seed(0))


def correlated(n=40, m=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4 * n, n // 4, generator=generator, dtype=torch.float64)
    rows = rows @ torch.randn(n // 4, n, generator=generator, dtype=torch.float64)
    rows += 0.1 * torch.randn(4 * n, n, generator=generator, dtype=torch.float64)
    return (rows.T @ rows / len(rows))[None], torch.randn(1, n, m, generator=generator, dtype=torch.float64)


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


def test_answers_do_not_depend_on_the_units_of_inputs_and_weights():
    moments, weights = correlated()
    found, small = (
        fitted(unit * moments, size * weights, bits=2, effort=effort()) for unit, size in ((1, 1), (2.0**-90, 2.0**-50))
    )
    assert torch.equal(found.planes, small.planes)
    assert found.lost == small.lost
    for name in ("scales", "margins", "errors"):
        assert torch.equal(getattr(found, name), 2.0**50 * getattr(small, name))


def test_correlated_inputs_are_fitted_by_their_own_moments_not_by_the_ridge():
    moments, weights = correlated()
    lost = fitted(moments, weights, bits=1, effort=effort()).lost["search"]
    barely = moments[0] + 1e-6 * moments[0].diagonal().mean() * torch.eye(40)
    fit = Fit.rounded(barely, weights[0], bits=1)
    list(fit.improve(effort()))
    assert lost < 1.5 * float(fit.energies().sum() / (weights[0] * (barely @ weights[0])).sum())


@pytest.mark.parametrize("solver", ["rounding", "feedback", "kicks"])
def test_weights_of_inputs_that_are_always_zero_are_rounded_to_their_mean_size(solver):
    weights = torch.tensor([[3.0, -1.0], [-1.0, 0.0], [2.0, 5.0]], dtype=torch.float64)[None]
    found = fitted(torch.zeros(1, 3, 3, dtype=torch.float64), weights, bits=1, effort=effort(solver))
    assert torch.equal(found.planes[0], torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]).double())
    torch.testing.assert_close(found.scales, torch.tensor([[2.0, 2.0]]).double())
    torch.testing.assert_close(found.margins[0], weights[0].abs())
    assert set(found.lost.values()) == {0.0}
    rows = lambda: iter([torch.zeros(9, 3)])  # noqa: E731
    for centred in (False, True):
        wide = WideLayer(rows, weights, bits=1, most_inputs=2, centred=centred).fitted(effort(solver))
        assert torch.equal(wide.planes, found.planes) and set(wide.lost.values()) == {0.0}
        torch.testing.assert_close(wide.scales, found.scales)


def test_without_inputs_targets_pull_as_hard_as_the_weights_stand():
    cross, weights = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[5.0], [-3.0]]])
    torch.testing.assert_close(target_weights(torch.zeros(1, 2, 2), cross, weights), cross + weights)
    metric = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])  # a mean of 3, of which a hundredth pulls
    found = target_weights(metric, cross, weights)
    torch.testing.assert_close(found, (cross + 0.03 * weights) / torch.tensor([[[2.03], [4.03]]]))


@pytest.mark.parametrize(("inputs", "most", "rows"), [(100, 100, 100), (1000, 100, 64), (64, 64, 64), (10, 100, 1000)])
def test_so_many_rows_are_taken_at_once_that_they_need_no_more_than_a_block(inputs, most, rows):
    assert rows_at_once(inputs, most) == rows
