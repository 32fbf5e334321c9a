"""Steps whose real part fails, groups with rates of their own or added late, schedulers and compilers around steps."""

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, QuboDescent, StraightThrough
from qpsbgd.nn import BinaryLinear

MAKERS = {
    "ridge": lambda p, **own: QPSBGD(p, projection="ridge", **own),
    "spins": lambda p, **own: QPSBGD(p, projection="spins", **own),
    "qubo descent": lambda p, **own: QuboDescent(p, **{"lr": 0.2, **own}),
    "binaryconnect": BinaryConnect,
    "straight-through": StraightThrough,
}


class Failing(torch.optim.SGD):
    fails = True

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("no memory")
        return super().step(closure)


def network():
    torch.manual_seed(0)
    return nn.Sequential(BinaryLinear(4, 6), nn.BatchNorm1d(6), nn.Hardtanh(), BinaryLinear(6, 3))


def backward(model):
    torch.manual_seed(1)
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3).backward()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_step_whose_real_optimiser_fails_changes_nothing_and_can_be_repeated(make):
    model, other = network(), network()
    optimizer = make(model, steps=10, real={"kind": Failing, "lr": 0.1})
    backward(model)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="no memory"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert not any(optimizer.state.values()) and optimizer.param_groups[0]["step"] == 0
    optimizer._real.parts[0].optimizer.fails = False
    optimizer.step()
    plain = make(other, steps=10, real={"kind": torch.optim.SGD, "lr": 0.1})
    backward(other)
    plain.step()
    assert all(torch.equal(p, own) for p, own in zip(model.parameters(), other.parameters(), strict=True))


def test_a_group_keeps_a_rate_relative_where_that_is_asked_for():
    assert QPSBGD([{"params": [BinaryLinear(4, 3)], "lr": 0.01}], relative=True).param_groups[0]["relative"]
    assert QPSBGD([{"params": [BinaryLinear(4, 3)], "lr": 0.01, "relative": True}]).param_groups[0]["relative"]
    assert QPSBGD([{"params": [BinaryLinear(4, 3)]}]).param_groups[0]["relative"]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_group_added_later_ends_with_the_schedule_of_the_run(make):
    first, late = BinaryLinear(4, 3), BinaryLinear(4, 3)
    optimizer, moved = make([first], steps=20), []
    for step in range(21):
        if step == 10:
            optimizer.add_param_group({"params": [late]})
        optimizer.zero_grad()
        before = late.weight.detach().clone()
        (first(torch.randn(5, 4)).sum() + late(torch.randn(5, 4)).sum()).backward()
        optimizer.step()
        moved += [] if torch.equal(before, late.weight) else [step]
    if isinstance(optimizer, QuboDescent):  # no weight may gain by flipping
        assert moved and set(moved) <= set(range(10, 20))
    else:
        assert moved == [*range(10, 20)]


@pytest.mark.parametrize(
    ("make", "real"), [*zip(MAKERS.values(), [torch.optim.SGD, torch.optim.AdamW] * 3, strict=False)], ids=MAKERS
)
def test_schedulers_that_cycle_the_momentum_serve_binary_and_real_parameters(make, real):
    model = network()
    optimizer = make(model, lr=0.01, real={"kind": real, "lr": 0.1})
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        schedule.step()


@pytest.mark.filterwarnings("ignore")  # torch says what it does not compile
@pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name, marks=[] if name == "ridge" else pytest.mark.slow) for name, make in MAKERS.items()],
)
def test_a_compiled_step_is_the_step(make):
    torch._dynamo.reset()
    model, other = network(), network()
    optimizer, plain = make(model, steps=10, real=True), make(other, steps=10, real=True)
    compiled = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        backward(model)
        backward(other)
        compiled()
        plain.step()
    assert all(torch.equal(p, own) for p, own in zip(model.parameters(), other.parameters(), strict=True))
