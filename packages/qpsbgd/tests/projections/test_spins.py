import copy
import io
import pickle
from itertools import product

import pytest
import torch
from small_networks import assert_equal, backward, batch, latent, small_model, train
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Spins
from qpsbgd.projections.polar import newton_schulz
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.annealers.budget import Estimate
from qpsbgd_qubo.solvers.search import warm_start
from qpsbgd_qubo.solvers.search.descent import Descent


def one_layer(n=5, m=3, rows=12, dtype=torch.float64):
    torch.manual_seed(0)
    layer = BinaryLinear(n, m, dtype=dtype)
    return layer, torch.randn(rows, n, dtype=dtype), torch.randn(rows, m, dtype=dtype)


def stepped(layer, x, v, **options):
    """The direction of one step."""
    before = layer.weight.detach().clone()
    optimizer = QPSBGD(layer, lr=0.01, clip=None, **options)
    (layer(x) * v).sum().backward()
    optimizer.step()
    return (before - layer.weight.detach()) / 0.01, optimizer


def nearest(target, matrix):
    """The vector ±1 nearest to `target` in the metric of `matrix`, by trying all."""
    candidates = torch.tensor(list(product((-1.0, 1.0), repeat=len(target))), dtype=target.dtype)
    distances = ((candidates - target) @ matrix * (candidates - target)).sum(1)
    return candidates[distances.argmin()]


@pytest.mark.parametrize(("kappa", "delta"), [(0.3, 10.0), (1.0, 0.5), (4.0, 10.0)])
def test_spins_are_the_vectors_nearest_to_the_answer_of_the_ridge_in_the_metric_of_the_layer(kappa, delta):
    layer, x, v = one_layer(n=9)
    found, _ = stepped(layer, x, v, projection=Spins(solver="exact", kappa=kappa, delta=delta))
    gram = x.T @ x / len(x)
    matrix = gram / gram.diagonal().mean() + delta * torch.eye(9)
    gradient = layer.gain * v.T @ x
    solution = gradient @ matrix.inverse()
    # The size of a column of the ridge's answer: the layer's shrinkage times the size of the column's gradient.
    sizes = gradient.square().mean(1).sqrt() * solution.norm() / gradient.norm()
    for j in range(3):
        torch.testing.assert_close(found[j], nearest(kappa * solution[j] / sizes[j], matrix))


@pytest.mark.parametrize(("kappa", "block"), [(0.3, None), (1.0, 3)])
def test_spins_with_the_polar_target_are_the_vectors_nearest_to_the_polar_factor(kappa, block):
    layer, x, v = one_layer(n=9)
    found, _ = stepped(layer, x, v, projection=Spins(solver="exact", kappa=kappa, target="polar", delta=2, block=block))
    factor = newton_schulz((layer.gain * v.T @ x)[None])[0]
    factor /= factor.square().mean().sqrt()
    gram = x.T @ x
    matrix = gram / gram.diagonal().mean() + 2 * torch.eye(9)
    if block is not None:
        matrix = matrix * torch.block_diag(*[torch.ones(block, block)] * 3)  # blocks are problems of their own
    gradient = factor @ matrix
    sizes = gradient.square().mean(1).sqrt() * factor.norm() / gradient.norm()
    for j in range(3):
        torch.testing.assert_close(found[j], nearest(kappa * factor[j] / sizes[j], matrix))


def test_at_large_kappa_spins_are_binaryconnect_with_signs_and_momentum_step_by_step():
    ours, theirs = small_model(torch.float64), small_model(torch.float64)
    first = QPSBGD(ours, lr=0.01, projection=Spins(kappa=1e9))
    second = BinaryConnect(theirs, lr=0.01, update="sign", momentum=0.9)
    for seed in range(30):
        for model, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            backward(model, seed)
        if seed == 0:  # ours begins its mean with the first gradient, theirs with zero
            for weight in second.param_groups[0]["params"]:
                second.state[weight]["momentum_buffer"] = weight.grad.clone()
        first.step()
        second.step()
        assert_equal(latent(ours), latent(theirs))


def test_two_vectors_are_the_greedy_sum_of_the_formula():
    layer, x, v = one_layer(n=4, m=2)
    found, optimizer = stepped(layer, x, v, projection=Spins(solver="exact", bits=2, delta=2.0))
    gram = x.T @ x / len(x)
    matrix = gram / gram.diagonal().mean() + 2 * torch.eye(4)
    rest, total = layer.gain * v.T @ x, torch.zeros(2, 4, dtype=torch.float64)
    for _ in range(2):
        solution = rest @ matrix.inverse()
        sizes = rest.square().mean(1).sqrt() * solution.norm() / rest.norm()
        spins = torch.stack([nearest(solution[j] / sizes[j], matrix) for j in range(2)])
        factors = (spins * rest).sum(1) / (spins @ matrix * spins).sum(1)
        total += factors[:, None] * spins
        rest = rest - factors[:, None] * spins @ matrix
    torch.testing.assert_close(found, total / total.square().mean().sqrt())
    assert len(optimizer.solutions) == 2


def test_sparse_inputs_are_learnt():
    torch.manual_seed(0)
    x = (torch.rand(1000, 300) < 0.01).float()
    targets = (x @ torch.randn(300) > 0).long()
    layer = BinaryLinear(300, 2)
    optimizer = QPSBGD(layer, lr=0.01, projection="spins")
    for rows in torch.randint(0, 1000, (150, 64)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(x[rows]), targets[rows]).backward()
        optimizer.step()
    assert (layer(x).argmax(1) == targets).float().mean() > 0.7


@pytest.mark.parametrize(("anew", "bits"), [(True, 1), (False, 2)])
def test_a_step_that_follows_ends_in_local_minima_with_fields_that_are_still_exact(anew, bits, monkeypatch):
    monkeypatch.setattr(warm_start, "COLD_START_LIMIT", 2**24 if anew else 0)
    plain, ends = Descent.solve, []

    def solve(solver, state, linear):
        ends.append((state.quadratic, linear.mT, plain(solver, state, linear).state))
        return Solution(None, None, None, state=ends[-1][2])

    monkeypatch.setattr(Descent, "solve", solve)
    model = nn.Sequential(BinaryLinear(30, 20), nn.Hardtanh(), BinaryLinear(20, 5))
    optimizer = QPSBGD(model, lr=0.01, projection=Spins(bits=bits))
    for seed in range(30):
        x = torch.randn(50, 30, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert len(ends) == 30 * 2 * bits
    for matrix, linear, track in ends:
        coupling_fields = 2 * track.spins @ (matrix - torch.diag_embed(matrix.diagonal(dim1=1, dim2=2)))
        torch.testing.assert_close(track.coupling_fields, coupling_fields, rtol=1e-4, atol=1e-3)
        assert (track.spins * (coupling_fields + linear)).max() < 1e-3  # no flip lowers the energy
    assert ("spins" in optimizer.state[model[0].weight]) != anew


def test_starting_anew_gives_the_answers_of_plain_descent():
    followed, plain = small_model(), small_model()
    first, second = QPSBGD(followed, projection=Spins()), QPSBGD(plain, projection=Spins(solver="descent"))
    assert_equal(train(followed, first, range(12)), train(plain, second, range(12)))


RUNS = {
    "default": Spins,
    "two bits": lambda: Spins(bits=2),
    "exact": lambda: Spins(solver="exact", refresh=3),
    "blocks": lambda: Spins(block=2),
}


@pytest.mark.parametrize(
    ("name", "anew", "dtype"),
    [
        ("exact", True, torch.float32),
        ("default", False, torch.bfloat16),
        ("two bits", False, torch.float32),
        ("blocks", False, torch.bfloat16),
    ],
)
def test_a_run_resumed_from_state_dicts_equals_an_uninterrupted_one_bit_for_bit(name, dtype, anew, monkeypatch):
    monkeypatch.setattr(warm_start, "COLD_START_LIMIT", 2**24 if anew else 0)
    model = small_model(dtype)
    optimizer = QPSBGD(model, projection=RUNS[name](), steps=30)
    train(model, optimizer, range(6))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = small_model(dtype, seed=99)
    resumed = QPSBGD(fresh, projection=RUNS[name](), steps=30)
    fresh.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert_equal(train(model, optimizer, range(6, 25)), train(fresh, resumed, range(6, 25)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copied_pair_of_model_and_optimiser_goes_on_bit_for_bit(copied, monkeypatch):
    monkeypatch.setattr(warm_start, "COLD_START_LIMIT", 0)
    model = small_model()
    optimizer = QPSBGD(model, projection=Spins(bits=2))
    train(model, optimizer, range(6))
    twin_model, twin = copied((model, optimizer))
    assert_equal(train(model, optimizer, range(6, 25)), train(twin_model, twin, range(6, 25)))


def test_accumulated_clipped_and_scaled_gradients_take_the_step_of_the_whole_batch():
    plain, split, scaled = (small_model() for _ in range(3))
    x, target = batch()
    train(plain, QPSBGD(plain, lr=0.05, projection="spins"), [0])
    optimizer = QPSBGD(split, lr=0.05, projection="spins")
    for part in (slice(0, 3), slice(3, 8)):
        ((split(x[part]) - target[part]).square().sum() / target.numel()).backward()
    nn.utils.clip_grad_norm_(split.parameters(), 1e-3)
    optimizer.step()
    assert_equal(latent(split), latent(plain))
    optimizer, scaler = QPSBGD(scaled, lr=0.05, projection="spins"), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    scaler.scale((scaled(x) - target).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(scaled.parameters(), 1e9)
    scaler.step(optimizer)
    scaler.update()
    assert_equal(latent(scaled), latent(plain))


def test_a_pass_that_is_never_backpropagated_leaves_no_trace():
    for projection in ("ridge", "spins"):
        ends = []
        for strays in (False, True):
            model = small_model()
            optimizer = QPSBGD(model, lr=0.05, projection=projection)
            for seed in range(6):
                optimizer.zero_grad()
                if strays:
                    model(10 * batch(seed + 50)[0])
                backward(model, seed)
                if strays:
                    model(10 * batch(seed + 90)[0])
                optimizer.step()
            ends.append(latent(model))
        assert_equal(*ends)


class Charged(Solver):
    """A solver that says what layers cost, one submission for all of them."""

    def _solve(self, family):
        return make_solver("descent").solve(family)

    def estimate(self, shapes):
        return Estimate(1, 0.01 * sum(columns for _, columns in shapes))


@pytest.mark.parametrize("bits", [1, 3])
def test_an_estimate_counts_a_submission_per_vector(bits):
    optimizer = QPSBGD(small_model(), projection=Spins(solver=Charged(), bits=bits))
    cost = optimizer.estimate(steps=10)
    assert cost.submissions == 10 * bits
    assert cost.qpu_seconds == pytest.approx(10 * bits * 0.01 * 8)


class Undecided(Solver):
    def _solve(self, family):
        return Solution.of(family, 0 * family.linear)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bits": 0}, ValueError, "bits must be an integer of at least 1, got 0"),
        ({"bits": 1.5}, TypeError, "bits must be an integer"),
        ({"kappa": 0.0}, ValueError, "kappa must be a positive finite number"),
        ({"kappa": float("nan")}, ValueError, "kappa must be"),
        ({"solver": "magic"}, ValueError, "unknown solver 'magic'"),
        ({"memory": 1.0}, ValueError, "memory must be"),
        ({"delta": -1.0}, ValueError, "delta must be"),
        ({"rows": 0}, ValueError, "rows must be"),
        ({"target": "spins"}, ValueError, 'target must be "auto", "ridge" or "polar"'),
    ],
)
def test_bad_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        Spins(**options)


def test_answers_that_are_not_spins_are_refused_and_nothing_is_lost():
    model = small_model()
    optimizer = QPSBGD(model, lr=0.05, projection=Spins(solver="exact"))
    train(model, optimizer, range(3))
    before, state = latent(model), copy.deepcopy(optimizer.state_dict())
    optimizer.solver = Undecided()
    optimizer.zero_grad()
    backward(model, 3)
    with pytest.raises(ValueError, match="other than −1 and \\+1"):
        optimizer.step()
    assert_equal(latent(model), before)
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)
    optimizer.solver = "exact"
    optimizer.step()  # the pass is still there
    twin = small_model()
    assert_equal(latent(model), train(twin, QPSBGD(twin, lr=0.05, solver="exact"), range(4)))


def test_what_a_descent_left_is_forgotten_when_another_solver_takes_over(monkeypatch):
    monkeypatch.setattr(warm_start, "COLD_START_LIMIT", 0)
    model = small_model(torch.float64)
    optimizer = QPSBGD(model, lr=0.05, projection=Spins(refresh=4))
    train(model, optimizer, range(6))
    optimizer.solver = "exact"
    train(model, optimizer, range(6, 11))  # Q̄ is renewed meanwhile
    assert not {"spins", "signs", "coupling_fields"} & optimizer.state[model[0].weight].keys()
    optimizer.solver = make_solver("descent", warm=True)
    train(model, optimizer, [11])
    state, couplings = optimizer.state[model[0].weight], optimizer._derived[model[0]]["couplings"]
    torch.testing.assert_close(state["coupling_fields"], state["spins"] @ couplings)
