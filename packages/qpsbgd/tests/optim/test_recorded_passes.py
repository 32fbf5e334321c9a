import warnings
import weakref

import pytest
import torch
from small_networks import printed
from torch import nn

from qpsbgd import optim
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.projections import Ridge, ridge, system

QPSBGD = printed


def small_model():
    return nn.Sequential(BinaryLinear(4, 5), nn.Hardtanh(), BinaryLinear(5, 3))


def loss_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, target = torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)
    return (model(x) - target).square().mean()


def latent(model):
    return [weight.detach().clone() for weight in model.parameters()]


def stepped(before_step, **options):
    """The weights after a step on batch 1, with whatever `before_step` did to model and optimiser before it."""
    torch.manual_seed(0)
    model = small_model()
    optimizer = QPSBGD(model, lr=0.1, solver="exact", **options)
    before_step(model, optimizer)
    loss_of(model, 1).backward()
    optimizer.step()
    return latent(model)


EARLIER = {
    "zero_grad of the model": lambda model, x: (loss_of(model, 5).backward(), model.zero_grad()),
    "zeroed gradients": lambda model, x: (loss_of(model, 5).backward(), model.zero_grad(set_to_none=False)),
    "a saliency map": lambda model, x: torch.autograd.grad(model(x).square().sum(), x),
    "a pass to the inputs": lambda model, x: model(x).square().sum().backward(inputs=[x]),
    "gradients not kept": lambda model, x: torch.autograd.grad(loss_of(model, 7), list(model.parameters())),
}


@pytest.mark.parametrize("before", EARLIER.values(), ids=EARLIER)
def test_passes_whose_gradients_are_not_kept_leave_no_rows(before):
    x = torch.randn(3, 4, requires_grad=True)
    for one, other in zip(stepped(lambda model, _: before(model, x)), stepped(lambda *_: None), strict=True):
        assert torch.equal(one, other)


def test_the_first_pass_of_a_gradient_penalty_leaves_no_rows():
    torch.manual_seed(0)
    model = small_model()
    QPSBGD(model, lr=0.1)
    x = torch.randn(6, 4, requires_grad=True)
    output = model(x).square().sum()
    (slope,) = torch.autograd.grad(output, x, create_graph=True)
    (output + slope.square().sum()).backward()
    assert [len(layer.tape.read().inputs) for layer in (model[0], model[2])] == [6, 6]


def test_passes_add_up_when_gradients_are_clipped_or_kept_in_a_graph_between_them():
    def accumulated(between, **backward):
        torch.manual_seed(0)
        model = small_model()
        optimizer = QPSBGD(model, lr=0.1, solver="exact")
        loss_of(model, 1).backward()
        between(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on reference cycles
            loss_of(model, 2).backward(**backward)
        optimizer.step()
        return latent(model)

    plain = accumulated(lambda model: None)
    for other in (
        accumulated(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01)),
        accumulated(lambda model: None, create_graph=True),
    ):
        assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize(
    ("projection", "reduction"), [("ridge", torch.mean), ("spins", torch.sum), ("printed", torch.mean)]
)
def test_an_empty_batch_is_called_so(projection, reduction):
    model = nn.Sequential(BinaryLinear(4, 3), nn.Hardtanh(), BinaryLinear(3, 2))
    optimizer = optim.QPSBGD(model, lr=0.1, projection=projection)
    before = [p.clone() for p in model.parameters()]
    reduction(model(torch.zeros(0, 4)).square()).backward()
    with pytest.raises(ValueError, match="the batch is empty"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


def test_gradients_without_a_recorded_pass_are_refused_at_once_beside_real_parameters():
    model = nn.Sequential(BinaryLinear(4, 3), nn.LayerNorm(3), BinaryLinear(3, 2))
    optimizer, parameters = optim.QPSBGD(model, lr=0.1, real=True), dict(model.named_parameters())

    def loss(given, x):
        return torch.func.functional_call(model, given, (x,)).square().mean()

    before = [p.clone() for p in parameters.values()]
    for name, grad in torch.func.grad(loss)(parameters, torch.randn(8, 4)).items():
        parameters[name].grad = grad
    with pytest.raises(RuntimeError, match=r"no recorded pass.*torch\.func"):
        optimizer.step()
    assert all(map(torch.equal, before, parameters.values()))


def test_gradients_per_sample_leave_the_step_as_it_is():
    layer, x = BinaryLinear(4, 3), torch.randn(8, 4)
    optimizer = optim.QPSBGD(layer, lr=0.1)

    def loss(weight, row):
        return torch.func.functional_call(layer, {"weight": weight}, (row[None],)).square().sum()

    layer(x).square().sum().backward()
    own = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(layer.weight.detach(), x)
    torch.testing.assert_close(own.sum(0), layer.weight.grad)
    assert layer.tape.read().rows == 8
    optimizer.step()


@pytest.mark.parametrize(("rows", "recorded"), [(None, range(48)), (12, range(0, 48, 4))])
def test_of_more_rows_than_the_projection_wants_no_more_are_recorded(rows, recorded):
    layer = BinaryLinear(5, 2)
    optimizer = optim.QPSBGD(layer, projection=Ridge(rows=rows))
    x = torch.randn(48, 5)
    layer(x).square().sum().backward()
    optimizer.step()
    own = x[list(recorded)]
    torch.testing.assert_close(optimizer.state[layer.weight]["gram"][0], own.T @ own / len(own))


@pytest.fixture
def shapes(monkeypatch):
    """The shapes of the rows whose moments were computed, in turn."""
    found, plain = [], system.block_moments

    def counted(blocks, dtype, given, *more):
        found.append(given.shape)
        return plain(blocks, dtype, given, *more)

    monkeypatch.setattr(system, "block_moments", counted)
    return found


@pytest.mark.parametrize(("rows", "parts"), [(None, [3, 3, 3, 3, 3, 1]), (5, [3, 2])])
def test_wide_rows_are_read_a_few_at_a_time(rows, parts, shapes, monkeypatch):
    def system_after_a_step():
        torch.manual_seed(0)
        layer = BinaryConv2d(4, 2, 3, padding=1, groups=2)  # patches of 36 numbers
        optimizer = optim.QPSBGD(layer, projection=Ridge(rows=rows, block=1))
        layer(torch.randn(1, 4, 4, 4)).square().sum().backward()
        optimizer.step()
        return optimizer.state[layer.weight]["gram"]

    whole = system_after_a_step()
    monkeypatch.setattr("qpsbgd.nn.tape._READ_AT_ONCE", 36 * 3 + 35)
    torch.testing.assert_close(system_after_a_step(), whole)
    assert shapes == [(count, 36) for count in (sum(parts), *parts)]


def test_directions_are_let_go_after_the_step(monkeypatch):
    found, plain = [], ridge.unit_rms
    monkeypatch.setattr(ridge, "unit_rms", lambda *given: found.append(weakref.ref(made := plain(*given))) or made)
    layer = BinaryLinear(6, 4)
    optimizer = optim.QPSBGD(layer, projection="ridge")
    layer(torch.randn(8, 6)).square().sum().backward()
    optimizer.step()
    assert [direction() for direction in found] == [None]
