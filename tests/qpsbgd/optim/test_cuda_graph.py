import copy
from functools import partial

import pytest
import torch
from torch import nn

import qpsbgd
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim import cuda_graph
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import Solver, make_solver
from qpsbgd.solvers.search.landscape import sign_start

QPSBGD = partial(qpsbgd.QPSBGD, projection="spins")

pytest.importorskip("triton", reason="CUDA graphs of a step need triton")
if not torch.cuda.is_available():
    pytest.skip("CUDA graphs need a GPU", allow_module_level=True)


class Recording(Solver):
    """Descent that counts how often it was used."""

    asked = 0

    def solve(self, family):
        return make_solver("descent").solve(family)

    def solve_all(self, families):
        self.asked += 1
        return [make_solver("descent").solve(family) for family in families]


def counted(function, calls):
    def counting(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return counting


def run(steps, *, graphs, batches=(32,), nan_at=None, model=None, optimizer=None, seed=0, **options):
    torch.manual_seed(seed)
    if model is None:
        model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
        optimizer = QPSBGD(model, **options)
    if not graphs:
        optimizer._spins.graphed = lambda *step: False
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
    assert optimizer._spins.graphs
    assert_equal(graphed, plain)


def test_rows_with_nan_change_nothing_in_a_graphed_step():
    graphed, optimizer = run(12, graphs=True, nan_at=9)
    plain, _ = run(12, graphs=False, nan_at=9)
    assert optimizer._spins.graphs
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


def test_another_solver_reaches_a_run_that_has_a_graph():
    model, optimizer = run(10, graphs=True, solver="descent")
    assert optimizer._spins.graphs
    optimizer.solver = Recording()
    run(1, graphs=True, model=model, optimizer=optimizer)
    assert optimizer.solver.asked == 1
    optimizer.solver = make_solver("descent", max_flips=0)
    run(6, graphs=True, model=model, optimizer=optimizer)
    family = QuboFamily.trusted(*(optimizer.state[model[0].weight][name] for name in ("quadratic", "linear", "offset")))
    assert torch.equal(optimizer.solutions[0].spins, sign_start(family))


def test_solutions_stay_as_they_were_when_the_next_step_is_made():
    model, optimizer = run(10, graphs=True)
    kept = optimizer.solutions
    before = [solution.spins.clone() for solution in kept]
    run(3, graphs=True, model=model, optimizer=optimizer, seed=5)
    assert optimizer._spins.graphs
    assert all(torch.equal(solution.spins, spins) for solution, spins in zip(kept, before, strict=True))
    assert not torch.equal(optimizer.solutions[0].spins, before[0])


def test_more_alternating_shapes_than_graphs_are_not_captured_over_and_over(monkeypatch):
    captured = []
    monkeypatch.setattr(cuda_graph.GraphedStep, "__init__", counted(cuda_graph.GraphedStep.__init__, captured))
    sizes = tuple(range(10, 10 + cuda_graph._MOST_GRAPHS + 3))
    _, optimizer = run(12 * len(sizes), graphs=True, batches=sizes)
    assert len(captured) == len(optimizer._spins.graphs) == cuda_graph._MOST_GRAPHS


def test_a_loader_that_pins_memory_does_not_disturb_the_capture():
    data = torch.utils.data.TensorDataset(torch.randn(4000, 40))
    loader = torch.utils.data.DataLoader(data, batch_size=32, pin_memory=True, num_workers=1)
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
    optimizer = QPSBGD(model)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
    assert optimizer._spins.graphs


def test_a_weight_whose_input_was_always_zero_stays_in_a_graphed_step():
    torch.manual_seed(0)
    model = BinaryLinear(40, 8).cuda()
    before = model.weight.detach().clone()
    optimizer = QPSBGD(model)
    for _ in range(12):
        x = torch.randn(32, 40, device="cuda")
        x[:, 7] = 0
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert optimizer._spins.graphs
    assert torch.equal(model.weight[:, 7], before[:, 7])
    assert (model.weight[:, 8] != before[:, 8]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_inside_an_autocast_block_keeps_single_precision(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda()
    optimizer = QPSBGD(model)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            model(torch.randn(32, 40, device="cuda")).float().square().mean().backward()
            optimizer.step()
    assert optimizer._spins.graphs
    assert all(state["quadratic"].dtype == torch.float32 for state in optimizer.state.values())
