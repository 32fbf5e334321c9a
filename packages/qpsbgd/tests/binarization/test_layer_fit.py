import pytest
import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.layer_fit import LayerFit, empty_like, fill, fit_layer
from qpsbgd.binarization.layer_run import Options
from qpsbgd.binarization.planes import Effort, Fit


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


def test_answers_do_not_depend_on_the_units_of_inputs_and_weights():
    moments, weights = correlated()
    found, small = (
        fit_layer(unit * moments, size * weights, bits=2, effort=effort())
        for unit, size in ((1, 1), (2.0**-90, 2.0**-50))
    )
    assert torch.equal(found.planes, small.planes)
    assert found.lost == small.lost
    for name in ("scales", "margins", "errors"):
        assert torch.equal(getattr(found, name), 2.0**50 * getattr(small, name))


def test_correlated_inputs_are_fitted_by_their_own_moments_not_by_the_ridge():
    moments, weights = correlated()
    lost = fit_layer(moments, weights, bits=1, effort=effort()).lost["search"]
    barely = moments[0] + 1e-6 * moments[0].diagonal().mean() * torch.eye(40)
    fit = Fit.rounded(barely, weights[0], bits=1)
    list(fit.improve(effort()))
    assert lost < 1.5 * float(fit.errors().sum() / (weights[0] * (barely @ weights[0])).sum())


@pytest.mark.parametrize("solver", ["rounding", "feedback", "kicks"])
def test_weights_of_inputs_that_are_always_zero_are_rounded_to_their_mean_size(solver):
    weights = torch.tensor([[3.0, -1.0], [-1.0, 0.0], [2.0, 5.0]], dtype=torch.float64)[None]
    found = fit_layer(torch.zeros(1, 3, 3, dtype=torch.float64), weights, bits=1, effort=effort(solver))
    assert torch.equal(found.planes[0], torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]).double())
    torch.testing.assert_close(found.scales, torch.tensor([[2.0, 2.0]]).double())
    torch.testing.assert_close(found.margins[0], weights[0].abs())
    assert set(found.lost.values()) == {0.0}


@pytest.mark.parametrize("kept", [False, True])
def test_a_latent_weight_is_as_large_as_its_flip_costs(kept):
    layer = nn.Linear(2, 3, bias=kept)
    layer.weight.requires_grad_(not kept)
    binary = empty_like(layer, bits=1, bias=True)
    planes = torch.tensor([[[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]]], dtype=torch.float64)
    margins = torch.tensor([[[1.0, 2.0, 0.0], [1.0, 3.0, 3.0]]], dtype=torch.float64)  # a root mean square of 2
    scales = torch.tensor([[0.5, 0.25, 4.0]], dtype=torch.float64)
    bias = torch.tensor([[1.0, 2.0, 3.0]])
    fill(binary, layer.eval(), LayerFit(planes, scales, margins, torch.zeros(1, 2, 3), {}), bias)
    unit = binary.initial_bound / 3**0.5
    sizes = torch.tensor([[0.5, 0.5], [1.0, 1.5], [0.01, 1.5]]) * unit
    torch.testing.assert_close(binary.weight.detach(), (planes[0].T * sizes).float().clamp(-1, 1))
    assert binary.scale.flatten().tolist() == [0.5, 0.25, 4.0] and not binary.training
    assert torch.equal(binary.bias, bias[0])
    assert [part.requires_grad for part in (binary.weight, binary.scale, binary.bias)] == [not kept, not kept, True]


def options(**changed):
    given = {"bits": 1, "solver": "kicks", "rounds": 4, "targets": "own", "bias": True, "rows": None, "progress": False}
    return Options(**given | changed)


def test_options_are_checked_at_their_bounds():
    for bits in (0, 9, True, 1.0, None, {"a": 1, "b": 9}, {"a": 0}):
        with pytest.raises(ValueError, match="bits must be integers from 1 to 8"):
            options(bits=bits)
    for bits in (1, 8, {"a": 1, "b": 8}, {}):
        assert options(bits=bits).bits_of("b") == (bits if isinstance(bits, int) else bits.get("b", 1))
    with pytest.raises(ValueError, match="rounds must be an integer of at least 0"):
        options(rounds=-1)
    assert options(rounds=0).solver == "kicks" and not isinstance(options(solver="exact").solver, str)
