import copy

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.optim import cuda_graph, functional
from qpsbgd.projections import Polar, Printed, Ridge, Spins
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.system import inverse
from qpsbgd.projections.weights import Weights
from qpsbgd.solvers import make_solver

pytest.importorskip("triton", reason="CUDA graphs of a step need triton")
if not torch.cuda.is_available():
    pytest.skip("CUDA graphs need a GPU", allow_module_level=True)


def kept_tensors(model, optimizer):
    states = [{k: v for k, v in state.items() if torch.is_tensor(v)} for state in optimizer.state.values()]
    return copy.deepcopy((model.state_dict(), states))


def run(steps, *, graphs, model=None, optimizer=None, seed=0, nan_at=None, **options):
    torch.manual_seed(seed)
    if model is None:
        model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
        optimizer = QPSBGD(model, **options)
    if not graphs:
        optimizer._graphs.step = functional.qpsbgd
    for index in range(steps):
        x = torch.randn(32, 40, device="cuda")
        if index == nan_at:
            x[3, 5] = torch.nan
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if index == nan_at:
            before = kept_tensors(model, optimizer)
            with pytest.raises(ValueError, match=r"holds? NaN"):
                optimizer.step()
            torch.testing.assert_close(kept_tensors(model, optimizer), before, rtol=0, atol=0)
            continue
        optimizer.step()
    return model, optimizer


def assert_equal(one, other):
    # A graph multiplies by a rate that lies on the device, which may be rounded otherwise.
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


OPTIONS = {
    "ridge": {"projection": Ridge()},
    "spins": {"projection": Spins()},
    "two bits": {"projection": Spins(bits=2), "lr": 0.02},
    "blocks": {"projection": Spins(block=24)},
    "no momentum": {"projection": Spins(), "momentum": 0.0},
    "often renewed": {"projection": Spins(refresh=7)},
    "polar": {"projection": Polar()},
    "spins near polar": {"projection": Spins(target="polar")},
    "weights": {"projection": Weights(), "lr": 0.02, "momentum": 0.998, "clip": None, "relative": False},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_graphed_run_equals_one_that_launches_one_by_one(name):
    graphed, optimizer = run(60, graphs=True, **OPTIONS[name])
    plain, _ = run(60, graphs=False, **OPTIONS[name])
    assert len(optimizer._graphs) == (1 if name in ("polar", "weights") else 2)  # with and without new moments
    assert_equal(graphed, plain)


def test_steps_that_a_graph_cannot_hold_run_as_they_are():
    for projection in (Printed(), Spins(solver="annealing")):
        _, optimizer = run(12, graphs=True, projection=projection)
        assert not len(optimizer._graphs)


def test_rows_with_nan_change_nothing_in_a_graphed_run():
    for nan_at in (25, 40):  # between renewals, and in one
        graphed, optimizer = run(50, graphs=True, nan_at=nan_at, projection="spins")
        plain, _ = run(50, graphs=False, nan_at=nan_at, projection="spins")
        assert len(optimizer._graphs)
        assert_equal(graphed, plain)


def test_a_changed_learning_rate_and_a_loaded_state_reach_the_graph():
    models = []
    for graphs in (True, False):
        model, optimizer = run(30, graphs=graphs, projection="spins")
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        run(30, graphs=graphs, model=model, optimizer=optimizer, seed=1)
        models.append(model)
    assert_equal(*models)


def test_a_copied_optimiser_does_not_share_the_graph():
    model, optimizer = run(30, graphs=True, projection="spins")
    other, copied = copy.deepcopy((model, optimizer))
    run(15, graphs=True, model=other, optimizer=copied, seed=2)
    run(15, graphs=True, model=model, optimizer=optimizer, seed=2)
    assert_equal(model, other)


def test_another_solver_reaches_a_run_that_has_a_graph():
    model, optimizer = run(30, graphs=True, projection="spins")
    assert len(optimizer._graphs)
    optimizer.solver = make_solver("descent", max_flips=0)
    run(1, graphs=True, model=model, optimizer=optimizer)
    linear = -optimizer.state[model[0].weight]["gradient"]
    assert torch.equal(optimizer.solutions[0].spins.T, torch.where(linear <= 0, 1.0, -1.0))


def test_solutions_stay_as_they_were_when_the_next_step_is_made():
    model, optimizer = run(30, graphs=True, projection="spins")
    kept = optimizer.solutions
    before = [solution.spins.clone() for solution in kept]
    run(3, graphs=True, model=model, optimizer=optimizer, seed=5)
    assert all(torch.equal(solution.spins, spins) for solution, spins in zip(kept, before, strict=True))
    assert not torch.equal(optimizer.solutions[0].spins, before[0])


def test_a_loader_that_pins_memory_does_not_disturb_the_capture():
    data = torch.utils.data.TensorDataset(torch.randn(4000, 40))
    loader = torch.utils.data.DataLoader(data, batch_size=32, pin_memory=True, num_workers=1)
    model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
    optimizer = QPSBGD(model, projection="spins")
    for (x,) in loader:
        optimizer.zero_grad()
        model(x.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
    assert len(optimizer._graphs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_inside_an_autocast_block_keeps_single_precision(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
    optimizer = QPSBGD(model, projection="spins")
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            model(torch.randn(32, 40, device="cuda")).float().square().mean().backward()
            optimizer.step()
    assert len(optimizer._graphs)
    assert all(state["gram"].dtype == torch.float32 for state in optimizer.state.values())


def test_more_combinations_of_layers_than_graphs_run_as_they_are():
    layers = [BinaryLinear(8, 4).cuda() for _ in range(4)]
    optimizer = QPSBGD(layers)
    for index in range(400):
        optimizer.zero_grad()
        chosen = [layer for bit, layer in enumerate(layers) if (index % 15 + 1) >> bit & 1]
        sum(layer(torch.randn(16, 8, device="cuda")).square().mean() for layer in chosen).backward()
        optimizer.step()
    assert len(optimizer._graphs) == cuda_graph._MOST_GRAPHS


def test_a_convolution_follows_on_a_gpu_as_on_a_cpu():
    ends = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(BinaryConv2d(2, 6, 3, groups=2), nn.Flatten(), BinaryLinear(54, 4)).to(device).double()
        optimizer = QPSBGD(model, projection=Spins(bits=2))
        for seed in range(12):
            x = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            optimizer.zero_grad()
            model(x.to(device)).square().mean().backward()
            optimizer.step()
        ends.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(*ends)


def test_systems_are_inverted_as_on_a_cpu():
    rows = torch.randn(3, 60, 40)
    gram, blocks = rows.mT @ rows, Blocks(groups=3, inputs=40, outputs=1, parts=1)
    torch.testing.assert_close(inverse(gram.cuda(), 3.0, blocks).cpu(), inverse(gram, 3.0, blocks))


def test_a_step_without_a_pass_says_so_beside_fused_real_parameters():
    model = nn.Sequential(BinaryLinear(40, 64), nn.BatchNorm1d(64), BinaryLinear(64, 20)).cuda()
    with pytest.raises(RuntimeError, match="pass"):
        QPSBGD(model, steps=10, real=True).step()
