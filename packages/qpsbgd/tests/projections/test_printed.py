import pytest
import torch

from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.projections import LayerInputs, Printed
from qpsbgd.projections.printed import PrintedState


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
