import copy

import pytest
import torch
from small_networks import assert_equal, backward, latent, small_model, train
from torch import nn

import qpsbgd
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Ridge
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.system import inverse


def QPSBGD(params, lr=None, projection=None, **options):
    """The optimiser with options of the ridge beside its own."""
    own = {name: options.pop(name) for name in ("delta", "memory", "refresh", "block", "rows") if name in options}
    return qpsbgd.QPSBGD(params, lr, projection or Ridge(**own), **options)


@pytest.mark.parametrize("penalty", [0.01, 1.0, 30.0])
def test_a_step_solves_the_ridge_regression_of_the_output_gradients(penalty):
    torch.manual_seed(0)
    layer = BinaryLinear(6, 3, dtype=torch.float64)
    x, v = torch.randn(20, 6, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    before = layer.weight.detach().clone()
    optimizer = QPSBGD(layer, lr=0.01, delta=penalty)
    (layer(x) * v).sum().backward()
    optimizer.step()
    # The same by stacking the ridge below the rows: min ‖X g − v‖² + δ mean(diag XᵀX) ‖g‖².
    weight = (penalty * x.square().sum(0).mean()).sqrt()
    stacked = torch.cat([x, weight * torch.eye(6, dtype=torch.float64)])
    solution = torch.linalg.lstsq(stacked, torch.cat([v, torch.zeros(6, 3, dtype=torch.float64)])).solution.T
    step = 0.01 * solution / solution.square().mean().sqrt()
    torch.testing.assert_close(layer.weight.detach(), before - step)


@pytest.mark.parametrize(("groups", "limit"), [(1, None), (2, 6), (1, 4), (2, 3), (1, 1)])
def test_blocks_cut_rows_and_weights_alike_and_join_again(groups, limit):
    torch.manual_seed(0)
    layer = BinaryLinear(6, 4, dtype=torch.float64)
    layer.groups = groups
    blocks = Blocks.of(layer, limit)
    rows, weight = torch.randn(7, groups * 6, dtype=torch.float64), layer.weight.detach()
    assert torch.equal(blocks.rejoin(blocks.weights(weight), weight), weight)
    outputs = blocks.rows(rows) @ blocks.weights(weight).transpose(1, 2)  # every block's share of its group's outputs
    shares = outputs.reshape(groups, blocks.parts, 7, 4 // groups).sum(1)
    whole = [
        rows[:, g * 6 : (g + 1) * 6] @ weight[g * (4 // groups) : (g + 1) * (4 // groups)].T for g in range(groups)
    ]
    torch.testing.assert_close(shares, torch.stack(whole))
    columns = torch.randn(7, 4)
    assert torch.equal(blocks.columns(columns)[-1], columns[:, -(4 // groups) :])


@pytest.mark.parametrize(
    ("rows", "rank", "penalty"), [(96, 1, 1.0), (96, 4, 1.0), (96, 6, 3.375), (96, 16, 10.0), (1024, 4, 3.0)]
)
def test_the_default_ridge_follows_the_rank_of_few_rows(rows, rank, penalty):
    x = torch.eye(rank, 16).repeat(rows // rank, 1) * 1e-3
    layer = BinaryLinear(16, 3)
    optimizer = QPSBGD(layer, lr=0.01)
    (layer(x) * torch.randn(len(x), 3)).sum().backward()
    optimizer.step()
    assert float(optimizer.state[layer.weight]["penalty"]) == pytest.approx(penalty)


def test_the_factorisation_serves_until_the_next_refresh():
    model = small_model()
    optimizer = QPSBGD(model, lr=0.01, refresh=10)
    renewed = []
    for step in range(25):
        before = optimizer.state.get(model[0].weight, {}).get("refreshes", 0)
        train(model, optimizer, [step])
        if optimizer.state[model[0].weight]["refreshes"] > before:
            renewed.append(step)
    assert renewed == [0, 1, 3, 7, 10, 20]


def test_the_mean_of_the_inputs_second_moments_is_bias_corrected():
    layer = BinaryLinear(4, 3)
    optimizer = QPSBGD(layer, lr=0.01, memory=0.5, refresh=1)
    inputs = [torch.randn(8, 4) for _ in range(3)]
    for x in inputs:
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    shares = torch.tensor([0.25, 0.5, 1.0])
    expected = sum(share * x.T @ x / 8 for share, x in zip(shares / shares.sum(), inputs, strict=True))
    torch.testing.assert_close(optimizer.state[layer.weight]["gram"][0], expected)


def test_the_default_rate_is_relative_to_the_initial_range_of_each_layer():
    model = nn.Sequential(BinaryLinear(100, 50), nn.Hardtanh(), BinaryLinear(50, 10))
    optimizer = QPSBGD(model, steps=16, warmup=0.0)
    lr = optimizer.param_groups[0]["lr"]
    assert lr == pytest.approx(0.25 / 2)
    before = latent(model)
    model(torch.randn(32, 100)).square().sum().backward()
    optimizer.step()
    for layer, old in zip((model[0], model[2]), before, strict=True):
        moved = (layer.weight.detach() - old).square().mean().sqrt().item()
        assert moved == pytest.approx(lr * layer.initial_bound, rel=0.2)  # some are clipped
        assert layer.weight.abs().max() <= 2 * layer.initial_bound + 1e-6


def test_layers_of_both_projections_train_side_by_side():
    model = small_model()
    groups = [{"params": model[0], "projection": "spins"}, {"params": model[2], "projection": "ridge"}]
    optimizer = QPSBGD(groups, lr=0.05, projection="ridge")
    train(model, optimizer, [0])
    alone = [small_model(), small_model()]
    for twin, projection in zip(alone, ("spins", "ridge"), strict=True):
        train(twin, QPSBGD(twin, lr=0.05, projection=projection), [0])
    assert_equal(latent(model), [alone[0][0].weight.detach(), alone[1][2].weight.detach()])


def test_a_solver_asks_for_spins_and_does_not_go_with_the_ridge():
    layer = BinaryLinear(4, 3)
    assert qpsbgd.QPSBGD(layer).param_groups[0]["projection"].name == "ridge"
    assert qpsbgd.QPSBGD(layer, solver="exact").param_groups[0]["projection"].name == "spins"
    assert qpsbgd.QPSBGD(layer, projection="printed", solver="exact").param_groups[0]["projection"].name == "printed"
    for name in ("ridge", "polar"):
        with pytest.raises(ValueError, match=rf'{name} has no solver; .*projection="spins"'):
            qpsbgd.QPSBGD(layer, projection=name, solver="exact")
    with pytest.raises(TypeError, match=r"projection: Ridge\(solver=…\)"):
        qpsbgd.QPSBGD(layer, projection=Ridge(), solver="exact")


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_state_does_not_share_memory_with_the_gradient(set_to_none):
    model = small_model()
    optimizer = QPSBGD(model)
    train(model, optimizer, [0])
    kept = optimizer.state[model[0].weight]["gradient"].clone()
    optimizer.zero_grad(set_to_none=set_to_none)
    backward(model, 1)
    assert torch.equal(optimizer.state[model[0].weight]["gradient"], kept)


def test_inputs_that_are_all_alike_need_a_ridge_that_is_not_tiny():
    blocks = Blocks.of(BinaryLinear(3, 2), None)
    alike = torch.ones(1, 3, 3)
    assert inverse(alike, 1.0, blocks).isfinite().all()
    assert inverse(alike, 1e-9, blocks).isfinite().all()  # in double precision
    with pytest.raises(ValueError, match="use a larger one"):
        inverse(alike - torch.eye(3), 1e-30, blocks)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"projection": "real"},
            ValueError,
            'projection must be one of "ridge", "spins", "polar", "printed" or an object',
        ),
        ({"projection": "spin"}, ValueError, 'must be one of "ridge", "spins"'),
        ({"projection": Ridge}, TypeError, r"write Ridge\(\)"),
        ({"projection": 3}, ValueError, "projection must be"),
        ({"delta": 0.0}, ValueError, "delta must be a positive"),
        ({"memory": 1.0}, ValueError, "memory must be"),
        ({"refresh": 0}, ValueError, "refresh must be an integer of at least 1"),
        ({"refresh": 2.5}, TypeError, "refresh must be an integer"),
        ({"block": 0}, ValueError, "block must be None or an integer of at least 1"),
        ({"relative": 1}, TypeError, "relative must be true or false"),
        ({"relative": False}, ValueError, "give lr"),
    ],
)
def test_bad_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        QPSBGD(small_model(), **options)


def test_layers_of_one_shape_are_solved_together_each_with_its_own_inputs():
    torch.manual_seed(0)
    together = nn.ModuleList(BinaryLinear(5, 3, dtype=torch.float64) for _ in range(3))
    alone = copy.deepcopy(together)
    inputs = [size * torch.randn(20, 5, dtype=torch.float64) ** 2 for size in (1, 2, 3)]
    optimizers = [QPSBGD(together, 0.1, "ridge"), *(QPSBGD(layer, 0.1, "ridge") for layer in alone)]
    for layers in (together, alone):
        sum(layer(x).sin().sum() for layer, x in zip(layers, inputs, strict=True)).backward()
    for optimizer in optimizers:
        optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.weight, other.weight)


def test_the_default_ridge_stays_a_tensor_when_batches_change_their_size():
    layer, found = BinaryLinear(16, 3), []
    optimizer = QPSBGD(layer, lr=0.01, projection=Ridge(refresh=1))
    for rows in (32, 2048, 32):
        optimizer.zero_grad()
        layer(torch.eye(4, 16).repeat(rows // 4, 1)).square().sum().backward()
        optimizer.step()
        found.append(optimizer.state[layer.weight]["penalty"])
    assert all(isinstance(one, torch.Tensor) for one in found)  # CUDA graphs bring tensors forward
    assert [float(one) for one in found] == pytest.approx([1.0, 3.0, 1.0])


def test_inputs_that_are_not_finite_are_not_blamed_on_the_ridge():
    gram = torch.full((1, 3, 3), float("nan"))
    with pytest.raises(ValueError, match="the inputs hold NaN or infinite values"):
        inverse(gram, 1.0, Blocks.of(BinaryLinear(3, 2), None))
