import pytest
import torch

from qpsbgd.optim.gradient_check import LateAnswer, nonfinite


def parameters(*grads):
    made = [torch.zeros(3, requires_grad=True) for _ in grads]
    for parameter, grad in zip(made, grads, strict=True):
        parameter.grad = None if grad is None else torch.tensor(grad)
    return made


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_gradients_that_are_not_finite_are_named(bad):
    given = parameters([1.0, 2.0, 3.0], None, [1.0, bad, 3.0])
    assert [p is given[2] for p in nonfinite(given)] == [True]
    assert nonfinite(given[:2]) == nonfinite(given[1:2]) == []


def test_the_late_answer_is_of_the_last_question_and_is_given_once():
    late = LateAnswer()
    assert late.answer() == []
    given = parameters([1.0, float("nan"), 3.0], [0.0, 0.0, 0.0])
    assert late.ask(given).item() is True
    given[0].grad = torch.ones(3)  # of the next step
    assert [p is given[0] for p in late.answer()] == [True]
    assert late.answer() == []
    assert late.ask(given).item() is False
    assert late.answer() == []
