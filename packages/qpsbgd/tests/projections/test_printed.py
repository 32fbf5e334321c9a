import pytest
import torch

from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.projections import LayerInputs, Printed
from qpsbgd.projections.printed import PrintedState


def test_with_momentum_the_mean_of_the_families_is_corrected_for_its_start():
    torch.manual_seed(0)
    layer, projection, state, linears = BinaryLinear(4, 3), Printed(solver="exact"), PrintedState(), []
    for _ in range(3):
        record = LayerRecord(torch.randn(6, 4), torch.randn(6, 3))
        linears.append(projection._families(LayerInputs(layer, layer.weight, record, 0.0, PrintedState()))[0].linear)
        (answer,) = projection.directions([LayerInputs(layer, layer.weight, record, 0.5, state)])
        state = answer.state
    weights = torch.tensor([0.25, 0.5, 1.0])
    expected = sum(weight * linear for weight, linear in zip(weights / weights.sum(), linears, strict=True))
    torch.testing.assert_close(state.linear[0], expected)
    assert state.step == 3


def test_figures_compare_the_answer_with_the_signs():
    # Both spins want to go up, but the coupling sets them apart: the answer leaves the sign vector in one spin.
    layer = BinaryLinear(2, 1)
    record = LayerRecord(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.1]]))
    seen = LayerInputs(layer, layer.weight, record, 0.0, PrintedState())
    (answer,) = Printed(solver="exact").directions([seen])
    (solution,) = answer.solutions()
    (family,) = Printed()._families(seen)
    signs = -family.linear.sign()
    figures = answer.figures()
    assert figures["energy"] == pytest.approx(solution.energies.item())
    assert figures["energy_minus_sign"] == pytest.approx((solution.energies - family.energies(signs)).item())
    assert figures["energy_minus_sign"] < 0 and figures["spins_off_sign"] == 0.5
