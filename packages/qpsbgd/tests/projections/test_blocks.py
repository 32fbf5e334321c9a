import pytest
import torch

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
