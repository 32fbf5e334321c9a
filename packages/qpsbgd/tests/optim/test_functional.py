import pytest
import torch

from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.tape import LayerMoments
from qpsbgd.optim.functional import LayerUpdate, qpsbgd
from qpsbgd.projections import LayerInputs, Ridge, SystemState


@pytest.mark.parametrize("skip", [True, False])
def test_a_step_to_be_skipped_leaves_weights_and_states_whatever_the_gradient_holds(skip):
    torch.manual_seed(0)
    layer = BinaryLinear(3, 2)
    layer.weight.requires_grad_(False)
    eye = torch.eye(3)[None]
    kept = SystemState(4, torch.randn(2, 3), gram=eye, refreshes=1, penalty=1.0, inverse=eye)
    before = layer.weight.clone(), kept.gradient.clone()
    grad = torch.full((2, 3), torch.nan) if skip else torch.randn(2, 3)
    inputs = LayerInputs(layer, grad, None, 0.9, kept)
    qpsbgd([LayerUpdate(layer.weight, inputs, Ridge(), 0.1, 1.0)], skip=torch.tensor(skip))
    assert torch.equal(layer.weight, before[0]) == skip
    assert torch.equal(kept.gradient, before[1]) == skip
    assert kept.gradient.isfinite().all()


def test_a_renewal_to_be_skipped_leaves_a_penalty_that_was_a_number():
    eye = torch.eye(3)[None]
    kept = SystemState(4, torch.ones(2, 3), gram=eye, refreshes=1, penalty=3.0, inverse=eye)
    layer = BinaryLinear(3, 2).requires_grad_(False)
    record = LayerMoments(torch.full((1, 3, 3), torch.nan), 8)
    inputs = LayerInputs(layer, torch.zeros(2, 3), record, 0.9, kept)
    qpsbgd([LayerUpdate(layer.weight, inputs, Ridge(memory=0.0), 0.1, 1.0)], skip=torch.tensor(True))
    assert float(kept.penalty) == 3
    assert torch.equal(kept.gram, eye)
