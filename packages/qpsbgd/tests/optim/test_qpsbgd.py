import copy
import gc
import math
import sys
from pathlib import Path

import pytest
import torch
from small_networks import (
    MAKERS,
    assert_equal,
    backward,
    batch,
    every,
    latent,
    printed,
    small_model,
    train,
    with_solver,
)
from torch import nn
from torch.optim import lr_scheduler

import qpsbgd
from qpsbgd import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd.binary_map import binary_map
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.solvers.exact.exact import Exact


class Interrupted(Solver):
    def _solve(self, family):
        raise KeyboardInterrupt


def one_step(make, seed=0, **options):
    model = small_model()
    optimizer = make(model, **{"lr": 0.1, "solver": "exact", **options})
    return train(model, optimizer, [seed])


def rows_of(model, seed=0):
    """Inputs and output gradients of the two layers of `small_model`, by autograd and without recording."""
    x, target = batch(seed)
    hidden = model[0](x)
    active = nn.functional.hardtanh(hidden)
    output = model[2](active)
    grads = torch.autograd.grad((output - target).square().mean(), [hidden, output])
    return [(x, grads[0]), (active.detach(), grads[1])]


@pytest.mark.parametrize(("scale", "lr"), [(1.0, 0.1), (4.0, 0.9), ("literal", 0.9)])
def test_a_step_moves_the_latent_weights_against_the_solution_and_clips_them(scale, lr):
    model = small_model()
    expected = [
        (layer.weight - lr * Exact().solve(binary_map(x, grads, gain=layer.gain, scale=scale)).spins.T).clamp(-1, 1)
        for layer, (x, grads) in zip((model[0], model[2]), rows_of(model), strict=True)
    ]
    assert_equal(one_step(printed, lr=lr, scale=scale), expected)
    assert max(weight.abs().max() for weight in expected) <= 1


@with_solver
def test_a_bound_of_clip_holds_and_none_leaves_weights_free(make):
    assert max(weight.abs().max() for weight in one_step(make, lr=3.0, clip=0.5)) == 0.5
    assert min(weight.abs().min() for weight in one_step(make, lr=3.0, clip=None)) > 2


def test_without_momentum_gain_scale_and_clip_a_step_is_algorithm_1_of_the_paper():
    layer = BinaryLinear(3, 2, gain=1.0)
    optimizer = printed(layer, lr=0.5, solver="exact", scale="literal", momentum=0.0, clip=None)
    x, grads = torch.randn(7, 3), torch.randn(7, 2)
    expected = layer.weight.detach().clone()
    vectors = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(x) * grads).sum().backward()
        optimizer.step()
        z = x / x.square().sum(1, keepdim=True)
        for j in range(2):
            errors = (grads[:, j] - vectors @ z.T).square().sum(1)
            expected[j] -= 0.5 * vectors[errors.argmin()]
        torch.testing.assert_close(layer.weight.detach(), expected)


def test_a_convolution_takes_the_step_of_its_patches():
    layer = BinaryConv2d(1, 2, (2, 3), stride=2)
    before, x = layer.weight.detach().clone(), torch.randn(3, 1, 6, 7)
    optimizer = printed(layer, lr=0.1, solver="exact")
    layer(x).square().sum().backward()
    family = binary_map(layer.input_rows(x), layer.grad_rows(2 * layer(x)), gain=layer.gain)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before - 0.1 * Exact().solve(family).spins.T.reshape(2, 1, 2, 3))


@with_solver
def test_solutions_are_those_of_the_last_step_in_the_order_of_the_layers(make):
    model = small_model()
    optimizer = make(model, solver="exact")
    train(model, optimizer, [0])
    assert [solution.spins.shape for solution in optimizer.solutions] == [(4, 5), (5, 3)]
    assert all(solution.proven_optimal.all() for solution in optimizer.solutions)


def test_momentum_solves_the_bias_corrected_mean_of_the_families():
    momentum = 0.6
    layer = BinaryLinear(4, 3)
    optimizer = printed(layer, lr=0.1, solver="exact", momentum=momentum, clip=None)
    mean = None
    for count in range(1, 4):
        x, grads = torch.randn(6, 4), torch.randn(6, 3)
        family = binary_map(x, grads, gain=layer.gain) * (1 - momentum)
        mean = family if mean is None else mean * momentum + family
        corrected = mean * (1 / (1 - momentum**count))
        expected = layer.weight.detach() - 0.1 * Exact().solve(corrected).spins.T
        (layer(x) * grads).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), expected)
        for name in ("quadratic", "linear", "offset"):
            torch.testing.assert_close(optimizer.state[layer.weight][name][0], getattr(corrected, name))


@every
def test_several_backward_passes_before_a_step_count_as_one_batch(make):
    model, x, target = small_model(), *batch()
    optimizer = make(model, lr=0.1, solver="exact")
    for part in (slice(0, 3), slice(3, 8)):
        ((model(x[part]) - target[part]).square().sum() / target.numel()).backward()
    optimizer.step()
    torch.testing.assert_close(latent(model), one_step(make))


@every
def test_zero_grad_forgets_records(make):
    for set_to_none in (True, False):
        model = small_model()
        optimizer = make(model, lr=0.1, solver="exact")
        backward(model, seed=5)
        optimizer.zero_grad(set_to_none)
        backward(model)
        optimizer.step()
        assert_equal(latent(model), one_step(make))


@every
def test_a_step_without_a_recorded_pass_raises_and_says_what_to_do(make):
    model = small_model()
    optimizer = make(model)
    with pytest.raises(RuntimeError, match=r"training mode .* loss.backward\(\)"):
        optimizer.step()
    model.eval()
    backward(model)
    with pytest.raises(RuntimeError, match="no recorded pass"):
        optimizer.step()


def test_a_record_is_used_once():
    model = small_model()
    optimizer = printed(model)
    train(model, optimizer, [0])
    with pytest.raises(RuntimeError, match="no recorded pass"):
        optimizer.step()


SCHEDULERS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8),
}


@with_solver
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_the_size_of_every_step(make, name):
    model = small_model()
    optimizer = make(model, lr=0.1, clip=None)
    scheduler = SCHEDULERS[name](optimizer)
    rates = set()
    for seed in range(4):
        before, rate = latent(model), optimizer.param_groups[0]["lr"]
        after = train(model, optimizer, [seed])
        rates.add(rate)
        assert max((new - old).abs().max() for old, new in zip(before, after, strict=True)) == pytest.approx(
            rate, rel=1e-4
        )
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len(rates) >= 3


def poisoned(where, model):
    x, target = batch()
    if where == "input":
        x[2, 1] = math.nan
    output = model(x)
    if where == "gradient":
        output.register_hook(lambda grad: grad * math.nan)
    if where == "overflow":
        output.register_hook(lambda grad: grad / 0)
    (output - target).square().mean().backward()


@every
@pytest.mark.parametrize("where", ["input", "gradient", "overflow"])
def test_a_pass_with_nan_raises_names_the_layer_and_changes_nothing(make, where):
    model = small_model()
    optimizer = make(model, lr=0.05)
    train(model, optimizer, range(2))
    untouched = copy.deepcopy((model, optimizer))
    optimizer.zero_grad()
    poisoned(where, model)
    with pytest.raises(ValueError, match=r"BinaryLinear.*NaN or infinite"):
        optimizer.step()
    assert_equal(latent(model), latent(untouched[0]))
    assert_equal(train(model, optimizer, range(2, 6)), train(*untouched, range(2, 6)))


@with_solver
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_step_interrupted_in_the_solver_can_be_repeated_with_another(make, steps_before):
    model = small_model()
    optimizer = make(model, lr=0.05, solver="exact")
    train(model, optimizer, range(steps_before))
    untouched = copy.deepcopy((model, optimizer))
    before = latent(model)
    optimizer.zero_grad()
    backward(model, steps_before)
    optimizer.solver = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert_equal(latent(model), before)
    assert len(optimizer.state) == (2 if steps_before else 0)
    optimizer.solver = make_solver("exact")
    optimizer.step()
    assert_equal(latent(model), train(*untouched, [steps_before]))
    assert_equal(train(model, optimizer, range(3, 6)), train(*untouched, range(3, 6)))


@every
def test_an_optimiser_made_later_takes_over_and_the_first_raises(make):
    for later in (QPSBGD, BinaryConnect, lambda model: ProxQuant(model, rate=0.1)):
        model = small_model()
        first = make(model)
        second = later(model)
        train(model, second, range(3))
        backward(model)
        with pytest.raises(RuntimeError, match=r"0 \(BinaryLinear.*another optimiser"):
            first.step()
        second.step()


@every
def test_a_grad_scaler_does_not_change_the_step(make):
    scaled, plain = small_model(), small_model()
    optimizer = make(scaled, lr=0.1, solver="exact")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for seed in (0, 1):
        optimizer.zero_grad()
        x, target = batch(seed)
        scaler.scale((scaled(x) - target).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_equal(latent(scaled), train(plain, make(plain, lr=0.1, solver="exact"), (0, 1)))


def test_the_size_of_the_loss_matters_only_to_the_literal_scale():
    def after(factor, scale):
        model = small_model()
        optimizer = printed(model, lr=0.1, solver="exact", scale=scale)
        backward(model, factor=factor)
        optimizer.step()
        return latent(model)

    assert_equal(after(1.0, 1.0), after(2.0**20, 1.0))
    assert not torch.equal(after(1.0, "literal")[1], after(2.0**20, "literal")[1])


def test_the_literal_scale_refuses_a_grad_scaler_and_goes_on_without():
    model = small_model()
    optimizer = printed(model, scale="literal")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch()[0]).sum()).backward()
    with pytest.raises(RuntimeError, match="use bfloat16 instead of a GradScaler"):
        scaler.step(optimizer)
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"solver": "exakt"}, ValueError, "unknown solver 'exakt'; choose one of auto, exact"),
        ({"scale": -1}, ValueError, 'scale other than "literal" must be a positive finite number, got -1'),
        ({"scale": 0}, ValueError, 'scale other than "literal" must be a positive finite number, got 0'),
        ({"scale": "foo"}, TypeError, "got 'foo'"),
    ],
)
def test_bad_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        printed(small_model(), **options)


class Stubborn(Solver):
    """Answers every family with the spins of one unit too few."""

    def _solve(self, family):
        return Solution(family.linear[1:], family.offset, family.offset == 0)


@with_solver
def test_a_solver_with_answers_of_the_wrong_shape_is_refused_before_anything_changes(make):
    model = small_model()
    optimizer = make(model, solver=Stubborn())
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(8, 4)).sum().backward()
    with pytest.raises(ValueError, match="must return spins of shapes"):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@every
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_weight_whose_input_was_always_zero_stays(make, momentum):
    layer = BinaryLinear(4, 3)
    before = layer.weight.detach().clone()
    optimizer = make(layer, lr=0.01, momentum=momentum)
    for seed in range(5):
        x = batch(seed)[0]
        x[:, 2] = 0
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    assert torch.equal(layer.weight[:, 2], before[:, 2])
    assert (layer.weight != before).all(0).tolist() == [True, True, False, True]


@with_solver
def test_a_weight_whose_input_is_zero_now_stays_though_the_momentum_remembers_it(make):
    layer = BinaryLinear(4, 3)
    optimizer = make(layer, lr=0.01)
    for seed in range(4):
        x = batch(seed)[0]
        if seed:
            x[:, 2] = 0
        before = layer.weight.detach().clone()
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
        assert (layer.weight != before).all(0).tolist() == [True, True, seed == 0, True]


def test_sparse_inputs_are_learnt_without_momentum():
    torch.manual_seed(0)
    x = (torch.rand(1000, 300) < 0.01).float()
    targets = (x @ torch.randn(300) > 0).long()
    layer = BinaryLinear(300, 2)
    optimizer = printed(layer, lr=0.01, momentum=0.0, solver="descent")
    for rows in torch.randint(0, 1000, (150, 64)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(x[rows]), targets[rows]).backward()
        optimizer.step()
    # Where such weights drift, all of them end at −1 and half of the answers are wrong.
    assert (layer(x).argmax(1) == targets).float().mean() > 0.7


@every
def test_a_step_inside_an_autocast_block_equals_one_outside(make):
    def run(inside):
        model = small_model()
        optimizer = make(model, lr=0.1, solver="exact")
        for seed in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                backward(model, seed)
                if inside:
                    optimizer.step()
            if not inside:
                optimizer.step()
        momentum = [value for state in optimizer.state.values() for value in state.values()]
        assert {value.dtype for value in momentum if isinstance(value, torch.Tensor)} == {torch.float32}
        return latent(model)

    assert_equal(run(True), run(False))


@every
def test_a_layer_in_evaluation_mode_stays_and_is_reported_once_at_the_users_line(make):
    model = small_model()
    model[2].eval()
    optimizer, before = make(model), latent(model)
    with pytest.warns(UserWarning, match=r"2 \(BinaryLinear.* nothing in 10 steps; call train") as found:
        for seed in range(15):
            optimizer.zero_grad()
            backward(model, seed)
            optimizer.step()
    assert len(found) == 1 and found[0].filename == __file__
    assert [torch.equal(old, new) for old, new in zip(before, latent(model), strict=True)] == [False, True]


@pytest.mark.parametrize(
    ("kind", "least"), [*((make, 0.85) for make in MAKERS.values()), (BinaryConnect, 0.85), (ProxQuant, 0.5)]
)
def test_the_defaults_learn_handwritten_digits(kind, least):
    sklearn = pytest.importorskip("sklearn.datasets", reason="the digits come from scikit-learn")
    pixels, digits = sklearn.load_digits(return_X_y=True)
    x, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(64, 64), nn.Hardtanh(), BinaryLinear(64, 10))
    optimizer = kind(model)
    for rows in torch.randint(0, 1400, (120, 32)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), targets[rows]).backward()
        optimizer.step()
    model.eval()
    assert (model(x[1400:]).argmax(1) == targets[1400:]).float().mean() > least


COMPUTING = {"nn/straight_through", "nn/tape", "optim/qpsbgd", "optim/binary_optimizer"} | {
    "optim/functional", "projections/protocol", "projections/system", "projections/ridge", "projections/blocks"
}  # fmt: skip
CHECKING = {"openmp", "optim/real_part", "parallel/ranks", "parallel/shards"}


def test_a_step_of_the_ridge_passes_through_nine_files_and_four_that_check():
    model = small_model()
    optimizer = QPSBGD(model, projection="ridge", real=False)
    folder, entered = Path(qpsbgd.__file__).parent, set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(folder):
            entered.add(path.relative_to(folder).with_suffix("").as_posix())

    for seed in range(4):  # with and without a renewal
        optimizer.zero_grad()
        loss = model(batch(seed)[0]).square().mean()
        gc.collect()  # what other tests left behind may end within files of its own
        sys.setprofile(note)
        try:
            loss.backward()
            optimizer.step()
        finally:
            sys.setprofile(None)
    assert entered == COMPUTING | CHECKING
