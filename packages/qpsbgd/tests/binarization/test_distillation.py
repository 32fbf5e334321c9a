import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, binarize
from qpsbgd.binarization.distillation import distill, embedding_loss, logit_loss, relative_error
from qpsbgd.nn import BinaryLayer


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(64, 16, generator=generator) for _ in range(8)]


@pytest.fixture
def student(teacher, batches):
    return binarize(teacher.eval(), batches, first=True, last=True, rounds=0, targets="own").model


def error(student, teacher, batches):
    rows = torch.cat(batches)
    with torch.no_grad():
        return float(relative_error(student.eval()(rows), teacher.eval()(rows)))


def test_distillation_brings_outputs_nearer_to_the_teacher(student, teacher, batches):
    before = error(student, teacher, batches)
    losses = distill(student, teacher, batches, steps=150, lr=0.01)
    assert len(losses) == 150
    assert error(student, teacher, batches) < 0.75 * before


@pytest.mark.parametrize(("bits", "rate"), [(1, 0.003), (2, 0.001)])
def test_one_bit_takes_larger_steps_than_several(bits, rate, teacher, batches):
    student = binarize(teacher.eval(), batches, bits=bits, rounds=0).model
    twin = copy.deepcopy(student)
    distill(student, teacher, batches, steps=3)
    rates = {"relative": True, "clip": "range", "steps": 3, "real": {"lr": 0.001, "weight_decay": 0.0}}
    distill(twin, teacher, batches, steps=3, optimizer=QPSBGD(twin, rate, **rates))
    assert torch.equal(student[3].weight, twin[3].weight)


def test_named_modules_stay_nearer_than_without_their_names(student, teacher, batches):
    def inner(model):
        return model[:4].eval()

    twin = copy.deepcopy(student)
    distill(student, teacher, batches, steps=100, lr=0.01, layers=["3"])
    distill(twin, teacher, batches, steps=100, lr=0.01)
    with_names, without = (error(inner(model), inner(teacher), batches) for model in (student, twin))
    assert with_names < 0.8 * without


def test_modes_and_frozen_parameters_stay_and_dropout_is_off(student, teacher, batches):
    student.train()
    student[0].eval()
    student[5].bias.requires_grad_(False)
    bias, twin = student[5].bias.clone(), copy.deepcopy(student)
    losses = distill(student, teacher, batches, steps=5)
    assert [module.training for module in student] == [False, True, True, True, True, True]
    assert torch.equal(student[5].bias, bias)
    assert losses == distill(twin, teacher, batches, steps=5)  # with dropout on, they would differ


class WithUnused(nn.Module):
    """A model, and a parameter that changes nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.unused = inner, nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) + 0 * self.unused.sum()


def test_parameters_without_a_gradient_do_not_decay(student, teacher, batches):
    student = WithUnused(student)
    distill(student, WithUnused(teacher), batches, steps=3)
    assert torch.equal(student.unused, torch.ones(3))


def test_batches_are_repeated_in_their_order(student, teacher, batches):
    shown = []
    hook = teacher.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    distill(student, teacher, iter(batches[:3]), steps=7)
    hook.remove()
    assert [next(k for k, batch in enumerate(batches) if torch.equal(batch, x)) for x in shown] == [0, 1, 2, 0, 1, 2, 0]


def test_a_loader_is_read_anew_in_every_pass(student, teacher, batches):
    class Loader:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([batches[0] + self.passes, batches[1]])

    loader, shown = Loader(), []
    hook = teacher.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    distill(student, teacher, loader, steps=4)
    hook.remove()
    assert loader.passes == 2
    assert torch.equal(shown[2], batches[0] + 2)


def test_a_loader_that_ends_too_early_is_an_error(student, teacher, batches):
    class Once:
        def __init__(self):
            self.batches = iter(batches[:3])

        def __iter__(self):
            return self.batches

    with pytest.raises(ValueError, match=r"for 10 steps, got 3.*read again"):
        distill(student, teacher, Once(), steps=10)


def test_losses_are_those_of_their_formulas():
    wanted, outputs = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [3.0, 0.0]])
    assert relative_error(outputs, wanted) == 0.5  # 1 / (1 + 1)
    theirs, ours = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert embedding_loss(theirs, theirs) == 0
    assert embedding_loss(ours, theirs) == 1 - 0.5 + 5 * 0.5  # one cosine of two is 0; two similarities of four are off

    assert relative_error(outputs[:, 0] + 1, wanted[:, 0]) == 1  # one number per sample: 2 / (1 + 1)
    assert (
        relative_error({"a": outputs, "b": wanted, "loss": wanted.sum()}, {"a": wanted, "b": wanted, "loss": 0}) == 0.25
    )


class Returning(nn.Module):
    def __init__(self, network, form):
        super().__init__()
        self.network, self.form = network, form

    def forward(self, x):
        return self.form(self.network(x))


FORMS = {
    "numbers": lambda y: y[:, 0],
    "a dictionary": lambda y: {"logits": y, "cache": None},
    "a tuple with a list": lambda y: (y, [y.square()]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_models_may_return_one_number_per_sample_or_several_tensors(form, teacher, batches):
    teacher = Returning(nn.Sequential(*teacher), form)
    student = binarize(teacher, batches, first=True, last=True, rounds=0, targets="own").model
    losses = distill(student, teacher, batches, steps=60, lr=0.01, layers=["", "network.3"])
    assert sum(losses[-8:]) < sum(losses[:8])


def test_the_loss_of_logits_is_the_divergence_of_their_classes():
    ours, theirs = torch.tensor([[0.0, 0.0], [2.0, 1.0]]), torch.tensor([[math.log(3.0), 0.0], [2.0, 1.0]])
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(logit_loss(ours, theirs)) == pytest.approx(first / 2)
    assert float(logit_loss(ours[None], SimpleNamespace(logits=theirs[None]))) == pytest.approx(first / 2)


def test_outputs_without_tensors_need_a_loss(student, teacher, batches):
    with pytest.raises(ValueError, match=r"relative_error.*got int.*loss="):
        distill(Returning(student, lambda y: 3), Returning(teacher, lambda y: 3), batches)


def test_what_cannot_be_distilled_is_refused(student, teacher, batches):
    with pytest.raises(ValueError, match="must have binary layers"):
        distill(teacher, teacher, batches)
    with pytest.raises(ValueError, match="student has no module 'blocks'"):
        distill(student, teacher, batches, layers=["blocks"])
    with pytest.raises(ValueError, match="needs batches"):
        distill(student, teacher, [])


def test_another_optimiser_can_do_it(student, teacher, batches):
    before = [layer.weight.clone() for layer in student.modules() if isinstance(layer, BinaryLayer)]
    seen = []
    optimizer = BinaryConnect(student, 0.01, relative=True, real=False)
    distill(student, teacher, batches, steps=3, optimizer=optimizer, progress=lambda *shown: seen.append(shown))
    after = [layer.weight for layer in student.modules() if isinstance(layer, BinaryLayer)]
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert [count for count, _ in seen] == [1, 2, 3]
