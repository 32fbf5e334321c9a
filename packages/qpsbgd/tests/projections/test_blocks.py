from functools import partial

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.projections import Printed, Ridge, Spins
from qpsbgd.solvers import Solver, make_solver


def trained(model, x, **options):
    """The weights' steps of one training step."""
    layers = [module for module in model.modules() if hasattr(module, "binary_weight")]
    before = [layer.weight.detach().clone() for layer in layers]
    optimizer = QPSBGD(model, lr=0.01, **options)
    torch.manual_seed(1)
    output = model(x)
    (output * torch.randn_like(output)).sum().backward()
    optimizer.step()
    return [layer.weight.detach() - old for layer, old in zip(layers, before, strict=True)], optimizer


@pytest.mark.parametrize("projection", [Ridge(), Printed(solver="exact"), Printed(scale=1.0), Spins()], ids=repr)
def test_a_grouped_convolution_steps_as_its_groups_would_alone(projection):
    torch.manual_seed(0)
    grouped = BinaryConv2d(4, 6, 2, groups=2, gain=1.0)
    x = torch.randn(3, 4, 5, 5)
    steps, _ = trained(grouped, x, projection=projection)
    torch.manual_seed(1)
    v = torch.randn(3, 6, 4, 4)
    for group in range(2):
        alone = BinaryConv2d(2, 3, 2, gain=1.0)
        with torch.no_grad():
            alone.weight.copy_(grouped.weight[3 * group : 3 * group + 3] - steps[0][3 * group : 3 * group + 3])
        before = alone.weight.detach().clone()
        optimizer = QPSBGD(alone, lr=0.01, projection=projection)
        (alone(x[:, 2 * group : 2 * group + 2]) * v[:, 3 * group : 3 * group + 3]).sum().backward()
        optimizer.step()
        step, own = steps[0][3 * group : 3 * group + 3], alone.weight.detach() - before
        if isinstance(projection, Ridge):  # one ridge and one size for the whole layer
            assert torch.cosine_similarity(step.flatten(), own.flatten(), dim=0) > 0.99
        elif isinstance(projection, Spins):
            assert (step.sign() == own.sign()).float().mean() > 0.9
        else:
            torch.testing.assert_close(step, own)


class Widths(Solver):
    """Plain descent that notes the sizes of the families."""

    def __init__(self):
        self.seen = []

    def _solve(self, family):
        self.seen.append((family.num_spins, family.num_columns))
        return make_solver("descent").solve(family)


def test_a_wide_layer_is_solved_in_blocks_and_goes_on_from_their_means():
    torch.manual_seed(0)
    layer, solver = BinaryLinear(10, 3), Widths()
    steps, optimizer = trained(layer, torch.randn(8, 10), projection=Printed(solver=solver, block=4), momentum=0.9)
    assert solver.seen == [(4, 3)] * 3
    assert steps[0].abs().min() > 0.009  # every weight moved
    assert optimizer.state[layer.weight]["quadratic"].shape == (3, 4, 4)
    optimizer.zero_grad()
    layer(torch.randn(8, 10)).square().sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["step"] == 2


@pytest.mark.parametrize("kind", [Ridge, Spins, partial(Spins, bits=2), Printed], ids=repr)
def test_a_run_in_blocks_is_resumed_bit_for_bit(kind):
    def made(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(BinaryConv2d(2, 4, 3, groups=2), nn.Flatten(), BinaryLinear(36, 3, bits=2))
        return model, QPSBGD(model, projection=kind(block=20), momentum=0.9, steps=9)

    def train(model, optimizer, seeds):
        for seed in seeds:
            optimizer.zero_grad()
            x = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(seed))
            model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    model, optimizer = made(0)
    train(model, optimizer, range(4))
    other, resumed = made(1)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    for a, b in zip(train(model, optimizer, range(4, 9)), train(other, resumed, range(4, 9)), strict=True):
        assert torch.equal(a, b)


def test_rows_of_a_convolution_are_sampled_and_its_step_stays_near_that_of_all_rows():
    steps = []
    for rows in (None, 200):
        torch.manual_seed(0)
        found, _ = trained(BinaryConv2d(3, 4, 3), torch.randn(20, 3, 12, 12), projection=Ridge(rows=rows))
        steps.append(found[0].flatten())
    assert not torch.equal(*steps)
    assert torch.cosine_similarity(*steps, dim=0) > 0.98
