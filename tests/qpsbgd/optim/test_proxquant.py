import copy
import io

import pytest
import torch
from torch import nn

from qpsbgd import BinaryConnect, ProxQuant
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim.baselines import proximal_step


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(BinaryLinear(4, 5), nn.Hardtanh(), BinaryLinear(5, 3))


def train(model, optimizer, seeds):
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        optimizer.zero_grad()
        target = torch.randn(8, 3, generator=generator)
        (model(torch.randn(8, 4, generator=generator)) - target).square().mean().backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


def test_a_proximal_step_moves_each_weight_to_its_nearest_sign_and_no_further():
    weights = torch.tensor([0.0, 0.5, 0.95, 1.0, 1.4, -0.2, -0.85, -1.1, -2.0])
    expected = torch.tensor([0.2, 0.7, 1.0, 1.0, 1.2, -0.4, -1.0, -1.0, -1.8])
    torch.testing.assert_close(proximal_step(weights, 0.2), expected)


def test_a_proximal_step_of_no_strength_changes_nothing():
    weights = torch.randn(20)
    torch.testing.assert_close(proximal_step(weights, 0.0), weights)


@pytest.mark.parametrize("strength", [0.03, 0.4, 1.7])
def test_a_proximal_step_minimises_its_definition(strength):
    weights = torch.linspace(-2, 2, 80, dtype=torch.float64)
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    nearest = torch.where(grid >= 0, 1.0, -1.0)
    values = 0.5 * (grid - weights[:, None]).square() + strength * (grid - nearest).abs()
    torch.testing.assert_close(proximal_step(weights, strength), grid[values.argmin(1)], rtol=0, atol=1e-4)


def test_a_step_is_a_gradient_step_then_a_proximal_step_that_grows():
    layer = BinaryLinear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5], [-0.2]]))
    optimizer = ProxQuant(layer, lr=0.1, rate=0.05)
    for expected in ([[0.45], [-0.35]], [[0.45], [-0.55]], [[0.5], [-0.8]]):
        layer.weight.grad = torch.ones(2, 1)
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), torch.tensor(expected))


@pytest.mark.parametrize("update", ["sgd", "sign", "adam"])
def test_without_a_regulariser_a_step_is_the_gradient_step(update):
    model, other = small_model(), small_model()
    plain = BinaryConnect(other, lr=0.01, update=update)
    other[0].latent_forward = other[2].latent_forward = True
    expected = train(other, plain, range(5))
    torch.testing.assert_close(train(model, ProxQuant(model, lr=0.01, rate=0.0, update=update), range(5)), expected)


@pytest.mark.parametrize("update", ["sgd", "sign", "adam"])
def test_weights_reach_plus_or_minus_one_by_the_last_step(update):
    model = small_model()
    for weights in train(model, ProxQuant(model, lr=0.001, steps=20, update=update), range(20)):
        assert torch.equal(weights.abs(), torch.ones_like(weights))


@pytest.mark.parametrize("steps", [1, 7, 100])
def test_a_weight_of_zero_left_alone_arrives_with_the_last_step(steps):
    layer = BinaryLinear(1, 1)
    nn.init.zeros_(layer.weight)
    optimizer = ProxQuant(layer, lr=0.0, steps=steps)
    layer.weight.grad = torch.ones(1, 1)
    for _ in range(steps):
        assert layer.weight.item() < 1
        optimizer.step()
    assert layer.weight.item() == 1


def test_training_uses_the_real_weights_and_evaluation_their_signs():
    layer, x = BinaryLinear(4, 3), torch.randn(6, 4)
    ProxQuant(layer, rate=0.1)
    torch.testing.assert_close(layer(x), layer.gain * x @ layer.weight.T)
    layer.eval()
    torch.testing.assert_close(layer(x), layer.gain * x @ layer.weight.sign().T)


def test_gradients_are_taken_at_the_real_weights():
    layer, x = BinaryLinear(4, 3), torch.randn(6, 4)
    ProxQuant(layer, rate=0.1)
    layer(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, (2 * layer.gain * layer(x).T @ x).detach())


def test_weights_stay_within_the_clip():
    model = small_model()
    weights = train(model, ProxQuant(model, lr=50.0, rate=0.0), range(3))
    assert max(weight.abs().max() for weight in weights) == 1


RUNS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "sign": {"update": "sign", "momentum": 0.9},
    "adam": {"update": "adam"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_from_state_dicts_equals_an_uninterrupted_one_bit_for_bit(name):
    model, fresh = small_model(), small_model(seed=99)
    optimizer, resumed = (ProxQuant(m, lr=0.02, rate=0.002, **RUNS[name]) for m in (model, fresh))
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    fresh.load_state_dict(weights)
    resumed.load_state_dict(state)
    ended, again = train(model, optimizer, range(4, 9)), train(fresh, resumed, range(4, 9))
    assert all(torch.equal(a, b) for a, b in zip(ended, again, strict=True))


def test_the_state_of_adam_survives_loading():
    model, fresh = small_model(), small_model(seed=99)
    optimizer, resumed = (ProxQuant(m, rate=0.001, update="adam") for m in (model, fresh))
    train(model, optimizer, range(3))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    old, new = optimizer.state[model[0].weight], resumed.state[fresh[0].weight]
    assert new["proximal_step"] == new["descent"]["step"] == 3
    assert torch.equal(new["descent"]["mean"], old["descent"]["mean"])
    assert torch.equal(new["descent"]["square"], old["descent"]["square"])


def test_a_copied_pair_goes_on_with_real_weights():
    model = small_model()
    optimizer = ProxQuant(model, lr=0.02, rate=0.002)
    train(model, optimizer, range(3))
    twin_model, twin = copy.deepcopy((model, optimizer))
    ended, again = train(model, optimizer, range(3, 6)), train(twin_model, twin, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(ended, again, strict=True))
    assert twin_model[0].latent_forward


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": None}, ValueError, "ProxQuant needs a learning rate"),
        ({"momentum": None}, TypeError, "momentum must be a finite number of at least 0"),
        ({"rate": -0.1}, ValueError, "rate must be a finite number of at least 0"),
        ({"steps": 0}, ValueError, "steps must be None or a whole number of at least 1"),
        ({"rate": 0.1, "lr": -1}, ValueError, "lr must be a finite number of at least 0"),
        ({"rate": 0.1, "update": "lion"}, ValueError, "update must be one of"),
        ({"rate": 0.1, "scale": 1.0}, TypeError, "scale"),
    ],
)
def test_bad_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        ProxQuant(small_model(), **options)


def test_without_a_number_of_steps_the_regulariser_grows_as_for_a_thousand():
    rates = [ProxQuant(small_model(), steps=steps).param_groups[0]["rate"] for steps in (None, 1000)]
    assert rates[0] == rates[1] == pytest.approx(2e-6)
