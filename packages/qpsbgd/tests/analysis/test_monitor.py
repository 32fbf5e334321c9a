import copy

import pytest
import torch
from small_networks import assert_equal, backward, small_model, train
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, Monitor, ProxQuant
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.projections import Ridge, Spins
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.solvers.search.landscape import sign_start


class Together(Solver):
    """The sign vector with the first spin of every column turned round, all layers in one call."""

    calls = 0

    def _solve(self, family):
        spins = sign_start(family)
        spins[0] *= -1
        return Solution.of(family, spins)

    def _solve_all(self, families):
        self.calls += 1
        return [self._solve(family) for family in families]


class Failing(Solver):
    def _solve(self, family):
        raise KeyboardInterrupt


MAKERS = {
    "spins": lambda model: QPSBGD(model, projection="spins"),
    "auto": lambda model: QPSBGD(model, solver="auto", momentum=0.0),
    "together": lambda model: QPSBGD(model, solver=Together()),
    "printed": lambda model: QPSBGD(model, projection="printed"),
    "two bits": lambda model: QPSBGD(model, projection=Spins(bits=2)),
    "blocks": lambda model: QPSBGD(model, projection=Spins(block=3)),
    "ridge": QPSBGD,
    "both": lambda model: QPSBGD([{"params": model[0]}, {"params": model[2], "projection": "spins"}]),
    "binaryconnect": BinaryConnect,
    "proxquant": ProxQuant,
}
OF_ALL = {"flip_rate", "step_size", "agreement"}
OF_SPINS = OF_ALL | {"energy", "energy_minus_sign", "spins_off_sign"}
OF_RIDGE = OF_ALL | {"penalty"}


def observed(kind, steps=3, **options):
    model, seen = small_model(), []
    optimizer = MAKERS[kind](model)
    with Monitor(model, optimizer, seen.extend, **options):
        train(model, optimizer, range(steps))
    return seen


@pytest.mark.parametrize("kind", MAKERS)
def test_training_is_the_same_with_and_without_a_monitor(kind):
    plain, watched = small_model(), small_model()
    optimizers = [MAKERS[kind](plain), MAKERS[kind](watched)]
    train(plain, optimizers[0], range(8))
    random = torch.get_rng_state()
    with Monitor(watched, optimizers[1], lambda observations: None, every=2):
        train(watched, optimizers[1], range(8))
    assert torch.equal(torch.get_rng_state(), random)
    assert_equal(list(plain.parameters()), list(watched.parameters()))
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize("kind", MAKERS)
def test_every_named_layer_is_reported_in_every_step(kind):
    seen = observed(kind)
    assert [(one.step, one.layer) for one in seen] == [(step, name) for step in (1, 2, 3) for name in ("0", "2")]
    for one in seen:
        spins = kind in ("spins", "auto", "together", "blocks", "printed", "two bits") or (
            kind == "both" and one.layer == "2"
        )
        assert set(one.figures) == (OF_SPINS if spins else OF_RIDGE if kind in ("ridge", "both") else OF_ALL)
        assert all(type(value) is float for value in one.figures.values())


def test_a_figure_of_a_step_has_the_value_that_its_name_says():
    layer = BinaryLinear(2, 2, gain=1.0)
    layer.weight.data = torch.tensor([[0.25, -0.5], [0.5, 1.0]])
    optimizer, seen = BinaryConnect(layer, lr=1.0, update="sgd", momentum=0.5), []
    with Monitor(layer, optimizer, seen.extend):
        layer.weight.grad = torch.tensor([[0.5, 0.0], [0.0, -1.0]])  # −0.25, then −0.5, 0.5, and 1.0 at the bound
        optimizer.step()
        layer.weight.grad = torch.tensor([[-0.125, 0.0], [0.25, 1.0]])  # moves by −0.125, 0, −0.25, −0.5
        optimizer.step()
    bound = layer.initial_bound
    first, second = (one.figures for one in seen)
    assert seen[0].layer == "BinaryLinear"
    assert first == {"flip_rate": 0.25, "step_size": pytest.approx(0.25 / bound), "agreement": 1.0}
    size = ((0.125**2 + 0.25**2 + 0.5**2) / 4) ** 0.5 / bound
    assert second == {"flip_rate": 0.0, "step_size": pytest.approx(size), "agreement": pytest.approx(2 / 3)}


@pytest.mark.parametrize("block", [None, 5])
def test_spins_are_compared_with_the_sign_vector_of_the_family_that_was_solved(block):
    torch.manual_seed(0)
    layer, seen = BinaryConv2d(2, 4, 3, groups=2), []
    solver, asked = Together(), []
    solve_all = solver.solve_all
    solver.solve_all = lambda families: asked.extend(families) or solve_all(families)
    optimizer = QPSBGD(layer, projection=Spins(solver=solver, block=block))
    parts = 1 if block is None else 2  # of 9 inputs, so that the last one is padded
    with Monitor(layer, optimizer, seen.extend):
        layer(torch.randn(2, 2, 5, 5)).square().sum().backward()
        optimizer.step()
    figures = seen[0].figures
    assert figures["spins_off_sign"] == pytest.approx(parts / 9)
    flipped = []
    for family in asked:
        quadratic, linear = family.quadratic.double(), family.linear.double()
        signs = torch.where(linear <= 0, 1.0, -1.0).double()
        fields = linear + 2 * (quadratic - quadratic.diagonal().diag()) @ signs
        flipped.append(-2 * signs[0] * fields[0])  # the energy that flipping the first spin costs
    assert len(flipped) == 2 * parts
    assert figures["energy_minus_sign"] == pytest.approx(torch.stack(flipped).mean().item(), rel=1e-4)
    energies = torch.stack([solution.energies for solution in optimizer.solutions])
    assert figures["energy"] == pytest.approx(energies.mean().item())


def test_the_ridge_reports_its_penalty():
    model, seen = small_model(), []
    groups = [
        {"params": model[0], "projection": Ridge(delta=3.0)},
        {"params": model[2], "projection": Ridge(delta=7.0)},
    ]
    optimizer = QPSBGD(groups)
    with Monitor(model, optimizer, seen.extend):
        train(model, optimizer, range(1))
    assert [one.figures["penalty"] for one in seen] == [3.0, 7.0]


def test_every_counts_the_steps_of_the_optimiser_also_after_a_resume():
    assert [one.step for one in observed("ridge", steps=7, every=3)] == [3, 3, 6, 6]
    model, seen = small_model(), []
    optimizer = QPSBGD(model)
    train(model, optimizer, range(4))
    state = copy.deepcopy(optimizer.state_dict())
    resumed = QPSBGD(model)
    with Monitor(model, resumed, seen.extend, every=3):
        resumed.load_state_dict(state)
        train(model, resumed, range(4, 7))
    assert [one.step for one in seen] == [6, 6]


@pytest.mark.parametrize("kind", ["ridge", "binaryconnect"])
def test_steps_that_a_grad_scaler_skips_are_not_reported(kind):
    model, seen = small_model(), []
    optimizer, scaler = MAKERS[kind](model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with Monitor(model, optimizer, seen.extend):
        for step in range(4):
            optimizer.zero_grad()
            output = model(torch.randn(8, 4))
            if step == 1:
                output.register_hook(lambda grad: grad / 0)
            scaler.scale(output.square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [one.step for one in seen] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("kind", ["ridge", "binaryconnect"])
def test_layers_without_a_gradient_are_not_reported(kind):
    model, seen = small_model(), []
    optimizer = MAKERS[kind](model)
    with Monitor(model, optimizer, seen.extend):
        model[0].weight.requires_grad_(False)
        train(model, optimizer, range(1))
    assert [one.layer for one in seen] == ["2"]


def test_groups_that_come_later_are_reported_and_a_part_of_a_model_can_be_watched():
    model, seen, head = small_model(), [], []
    optimizer = QPSBGD(model[0])
    with Monitor(model, optimizer, seen.extend):
        train(model, optimizer, range(1))
        optimizer.add_param_group({"params": model[2]})
        with Monitor(model[2], optimizer, head.extend):
            train(model, optimizer, range(1))
    assert [(one.step, one.layer) for one in seen] == [(1, "0"), (2, "0"), (2, "2")]
    assert [(one.step, one.layer) for one in head] == [(2, "BinaryLinear")]


def test_a_failed_step_is_not_reported_and_can_be_repeated():
    model, seen = small_model(), []
    optimizer = QPSBGD(model, solver=Failing())
    monitor = Monitor(model, optimizer, seen.extend)
    backward(model, 0)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer.solver = make_solver("descent")
    optimizer.step()
    assert [one.step for one in seen] == [1, 1]
    optimizer.solver = Failing()
    backward(model, 1)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    monitor.close()
    assert optimizer.observers == []


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (lambda model, optimizer: (model, torch.optim.SGD(model.parameters()), print), TypeError, "got SGD"),
        (lambda model, optimizer: (model, optimizer, "run.jsonl"), TypeError, "callback must be a function"),
        (lambda model, optimizer: (small_model(), optimizer, print), ValueError, "trains no layer of this model"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, match):
    model = small_model()
    with pytest.raises(error, match=match):
        Monitor(*arguments(model, QPSBGD(model)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_graphed_run_is_the_same_with_a_monitor():
    pytest.importorskip("triton", reason="CUDA graphs of a step need triton")
    models = []
    for every in (None, 1, 3):
        torch.manual_seed(0)
        model, seen = nn.Sequential(BinaryLinear(40, 64), nn.Hardtanh(), BinaryLinear(64, 20)).cuda(), []
        optimizer = MAKERS["spins"](model)
        monitor = None if every is None else Monitor(model, optimizer, seen.extend, every=every)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(32, 40, device="cuda")).square().mean().backward()
            optimizer.step()
        if monitor is not None:
            monitor.close()
            assert [one.step for one in seen[::2]] == list(range(every, 21, every))
        assert bool(len(optimizer._graphs)) == (every != 1)
        models.append(model)
    for model in models[1:]:
        assert_equal(list(models[0].parameters()), list(model.parameters()))


def test_a_monitor_without_a_callback_collects_shows_lines_and_draws():
    model = small_model()
    optimizer, lines = QPSBGD(model, projection="spins"), []
    with Monitor(model, optimizer, epoch=3, show=lines.append) as monitor:
        with pytest.raises(ValueError, match="there is nothing to draw: no step was observed"):
            monitor.plot()
        for step in range(6):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            monitor.note_loss(torch.tensor(float(step), requires_grad=True))
    assert [one.step for one in monitor.observations] == [step for step in range(1, 7) for _ in range(2)]
    assert monitor.losses == {step + 1: float(step) for step in range(6)}
    rates = [one.figures["flip_rate"] for one in monitor.observations if one.layer == "0" and one.step > 3]
    assert lines[1].startswith(f"step 6: loss 4; flips per step: 0 {100 * sum(rates) / 3:.2f} %, 2 ")
    figure = monitor.plot()
    assert [axes.get_title() for axes in figure.axes] == ["loss", "flips per step, %", "energy of the spins"]
    drawn = figure.axes[1].get_lines()[0]
    assert drawn.get_label() == "0" and list(drawn.get_xdata()) == list(range(1, 7))
    assert list(drawn.get_ydata())[3:] == pytest.approx([100 * rate for rate in rates])
    assert figure._repr_png_().startswith(b"\x89PNG")
