import io

import pytest
import torch
from torch import nn

from qpsbgd import BinaryConnect, StraightThrough
from qpsbgd.nn import BinaryLinear


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(BinaryLinear(4, 5), nn.Hardtanh(), BinaryLinear(5, 3))


def train(model, optimizer, seeds):
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        optimizer.zero_grad()
        target = torch.randn(8, 3, generator=generator)
        (model(torch.randn(8, 4, generator=generator)) - target).square().sum().backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


class SignSGD(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad.sign_()
        return super().step()


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"update": "sgd"}, torch.optim.SGD),
        ({"update": "sgd", "momentum": 0.9}, lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9)),
        ({"update": "sign"}, SignSGD),
        ({"update": "adam"}, torch.optim.Adam),
        (
            {"update": "adam", "betas": (0.5, 0.9), "eps": 1e-3},
            lambda params, lr: torch.optim.Adam(params, lr=lr, betas=(0.5, 0.9), eps=1e-3),
        ),
    ],
    ids=["sgd", "sgd with momentum", "sign", "adam", "adam with options"],
)
def test_without_clipping_the_latent_weights_move_as_torch_would_move_them(options, reference):
    model, other = small_model(), small_model()
    moved = train(model, BinaryConnect(model, lr=0.02, clip=None, **options), range(6))
    expected = train(other, reference(other.parameters(), lr=0.02), range(6))
    assert not torch.allclose(moved[0], small_model()[0].weight)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)


def test_sign_with_momentum_follows_the_sign_of_the_mean_gradient():
    layer = BinaryLinear(1, 3)
    start = layer.weight.detach().clone()
    optimizer = BinaryConnect(layer, lr=0.25, update="sign", momentum=0.5)
    layer.weight.grad = torch.tensor([[4.0], [-1.0], [0.0]])
    optimizer.step()
    layer.weight.grad = torch.tensor([[-1.0], [-1.0], [2.0]])
    optimizer.step()
    # The means are 2, −0.5, 0 after one step and 0.5, −0.75, 1 after two.
    torch.testing.assert_close(layer.weight.detach(), start - 0.25 * torch.tensor([[2.0], [-2.0], [1.0]]))


@pytest.mark.parametrize("update", ["sgd", "sign", "adam"])
def test_latent_weights_stay_within_the_clip(update):
    model = small_model()
    weights = train(model, BinaryConnect(model, lr=0.7, update=update, clip=0.5), range(4))
    assert max(weight.abs().max() for weight in weights) == 0.5


def test_the_network_computes_with_binary_weights():
    model = small_model()
    BinaryConnect(model)
    assert not model[0].latent_forward
    assert model[0].tape is None


def test_groups_have_options_of_their_own():
    model = small_model()
    start = [weight.detach().clone() for weight in model.parameters()]
    groups = [{"params": model[0], "update": "sign"}, {"params": model[2], "lr": 0.0}]
    ended = train(model, BinaryConnect(groups, lr=0.25), [0])
    torch.testing.assert_close((ended[0] - start[0]).abs().amax(), torch.tensor(0.25))
    assert torch.equal(ended[1], start[1])


def test_a_layer_without_gradient_is_not_updated():
    model = small_model()
    unused = BinaryLinear(4, 5)
    before = unused.weight.detach().clone()
    train(model, BinaryConnect([model, unused], update="adam"), [0])
    assert torch.equal(unused.weight, before)


def test_step_returns_the_loss_of_its_closure():
    model = small_model()
    optimizer = BinaryConnect(model)

    def closure():
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    expected = model(torch.ones(2, 4)).sum()
    assert optimizer.step(closure) == expected


@pytest.mark.parametrize(
    "options",
    [{"update": "sgd"}, {"update": "sgd", "momentum": 0.9}, {"update": "sign", "momentum": 0.9}, {}],
    ids=["sgd", "momentum", "sign", "adam"],
)
def test_a_run_resumed_from_state_dicts_equals_an_uninterrupted_one_bit_for_bit(options):
    model, fresh = small_model(), small_model(seed=99)
    optimizer, resumed = BinaryConnect(model, lr=0.02, **options), BinaryConnect(fresh, **options)
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    fresh.load_state_dict(weights)
    resumed.load_state_dict(state)
    ended, again = train(model, optimizer, range(4, 9)), train(fresh, resumed, range(4, 9))
    assert all(torch.equal(a, b) for a, b in zip(ended, again, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"update": "rmsprop"}, ValueError, "update must be one of .*, got 'rmsprop'"),
        ({"lr": -1}, ValueError, "lr must be a finite number of at least 0"),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number of at least 0 and below 1"),
        ({"update": "adam", "momentum": 0.9}, ValueError, '"adam" takes betas instead of momentum'),
        ({"betas": (0.9, 1.0)}, ValueError, "each of betas must be a finite number of at least 0 and below 1, got 1.0"),
        ({"eps": 0.0}, ValueError, "eps must be a positive finite number"),
        ({"clip": -1.0}, ValueError, "clip must be None or a positive finite number"),
        ({"nesterov": True}, TypeError, "nesterov"),
    ],
)
def test_bad_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        BinaryConnect(small_model(), **options)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_normalised_step_has_the_size_of_the_rate_whatever_the_gradient(size):
    layer = BinaryLinear(40, 30)
    optimizer = BinaryConnect(layer, lr=0.01, update="normalized", clip=None)
    before = layer.weight.detach().clone()
    layer.weight.grad = size * torch.randn(30, 40)
    optimizer.step()
    assert (layer.weight.detach() - before).square().mean().sqrt().item() == pytest.approx(0.01, rel=1e-4)


def test_a_normalised_step_of_no_gradient_changes_nothing():
    layer = BinaryLinear(40, 30)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.zeros(30, 40)
    BinaryConnect(layer, update="normalized").step()
    assert torch.equal(layer.weight.detach(), before)


@pytest.mark.parametrize("kind", [BinaryConnect, StraightThrough])
def test_the_fused_kernel_makes_the_same_step_of_adam_or_none_at_all(kind):
    plain, fused = small_model(), small_model()
    optimizers = [kind(model, lr=0.05) for model in (plain, fused)]
    for seed in range(3):
        train(plain, optimizers[0], [seed])
        optimizers[1]._check_gradients = lambda *_, **__: setattr(optimizers[1], "_skip", torch.tensor(False))
        train(fused, optimizers[1], [seed])
    torch.testing.assert_close(list(plain.parameters()), list(fused.parameters()))
    before = [weight.detach().clone() for weight in fused.parameters()]
    optimizers[1]._check_gradients = lambda *_, **__: setattr(optimizers[1], "_skip", torch.tensor(True))
    after = train(fused, optimizers[1], [3])
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
