"""A small binary network, batches for it and a training loop, for the tests of the optimisers."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, QuboDescent
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import PROJECTIONS
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver


class Counting(Solver):
    """Answers all −1 or all +1 in turn, so that a run depends on what came before."""

    def __init__(self):
        self.calls = 0

    def _solve(self, family):
        self.calls += 1
        return Solution.of(family, 0 * family.linear + (-1.0) ** (self.calls // 3), solver="counting")

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def maker(kind):
    """A function that makes `QPSBGD` with a kind of projection, which gets those of the options that it has."""
    known = {field.name for field in fields(kind)}

    def make(params, lr=None, *, momentum=0.9, scale=1.0, **options):
        own = {name: options.pop(name) for name in ("solver", "block", "rows") if name in options} | {"scale": scale}
        projection = kind(**{name: value for name, value in own.items() if name in known})
        return QPSBGD(params, lr, projection, momentum=momentum, **options)

    return make


OPTIMIZERS = {
    "ridge": lambda given, **options: QPSBGD(given, **options),
    "spins": lambda given, **options: QPSBGD(given, projection="spins", **options),
    "QuboDescent": lambda given, **options: QuboDescent(given, **{"lr": 0.5, **options}),
    "BinaryConnect": BinaryConnect,
    "ProxQuant": ProxQuant,
}
"""One optimiser of each kind, for what frameworks and real parameters ask of all of them."""
MAKERS = {name: maker(kind) for name, kind in PROJECTIONS.items()}
WITH_SOLVER = ("spins", "printed")
printed = MAKERS["printed"]
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
with_solver = pytest.mark.parametrize("make", [MAKERS[name] for name in WITH_SOLVER], ids=WITH_SOLVER)


def network_with_norm():
    """A network of 8 inputs and two classes, with real parameters of several shapes."""
    return nn.Sequential(
        BinaryLinear(8, 32, bias=True), nn.BatchNorm1d(32), nn.Hardtanh(), BinaryLinear(32, 2, bias=True)
    )


def small_model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        BinaryLinear(4, 5, dtype=dtype), nn.Hardtanh(inplace=True), BinaryLinear(5, 3, gain=0.7, dtype=dtype)
    )


def batch(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, generator=generator).to(dtype), torch.randn(8, 3, generator=generator).to(dtype)


def backward(model, seed=0, factor=1.0):
    x, target = batch(seed, next(model.parameters()).dtype)
    loss = factor * (model(x) - target).square().mean()
    loss.backward()
    return loss


def train(model, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()
    return latent(model)


def latent(model):
    return [weight.detach().clone() for weight in model.parameters()]


def assert_equal(first, second):
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
