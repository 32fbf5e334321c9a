import copy

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear

pytest.importorskip("triton", reason="CUDA graphs of a step need triton")
if not torch.cuda.is_available():
    pytest.skip("CUDA graphs need a GPU", allow_module_level=True)


def run(steps, *, graphs, batches=(32,), nan_at=None, model=None, optimizer=None, seed=0, **options):
    torch.manual_seed(seed)
    if model is None:
        model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
        optimizer = QPSBGD(model, **options)
    if not graphs:
        optimizer._graphed = lambda records: False
    for step in range(steps):
        inputs = torch.randn(batches[step % len(batches)], 40, device="cuda")
        if step == nan_at:
            inputs[0, 0] = torch.nan
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if step == nan_at:
            before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"][0]))
            with pytest.raises(ValueError, match="NaN"):
                optimizer.step()
            after = (model.state_dict(), optimizer.state_dict()["state"][0])
            assert all(torch.equal(before[0][k], after[0][k]) for k in after[0])
            assert all(torch.equal(torch.as_tensor(before[1][k]), torch.as_tensor(after[1][k])) for k in after[1])
            continue
        optimizer.step()
    return model, optimizer


def assert_equal(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.0}, {"scale": "literal", "clip": None}, {"solver": "descent", "lr": 0.02}], ids=repr
)
@pytest.mark.parametrize("batches", [(32,), (32, 32, 16)])
def test_a_graphed_run_equals_one_that_launches_one_by_one(options, batches):
    graphed, optimizer = run(25, graphs=True, batches=batches, **options)
    plain, _ = run(25, graphs=False, batches=batches, **options)
    assert optimizer._graphs
    assert_equal(graphed, plain)


def test_rows_with_nan_change_nothing_in_a_graphed_step():
    graphed, optimizer = run(12, graphs=True, nan_at=9)
    plain, _ = run(12, graphs=False, nan_at=9)
    assert optimizer._graphs
    assert_equal(graphed, plain)


def test_a_changed_learning_rate_and_a_loaded_state_reach_the_graph():
    models = []
    for graphs in (True, False):
        model, optimizer = run(10, graphs=graphs)
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        run(10, graphs=graphs, model=model, optimizer=optimizer, seed=1)
        models.append(model)
    assert_equal(*models)


def test_a_copied_optimiser_does_not_share_the_graph():
    model, optimizer = run(10, graphs=True)
    other, copied = copy.deepcopy((model, optimizer))
    run(5, graphs=True, model=other, optimizer=copied, seed=2)
    run(5, graphs=True, model=model, optimizer=optimizer, seed=2)
    assert_equal(model, other)
