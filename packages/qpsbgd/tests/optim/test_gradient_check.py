import torch

from qpsbgd.optim.gradient_check import DeferredFiniteCheck, nonfinite


def parameters(*grads):
    """Parameters by number, and their gradients."""
    return {number: torch.tensor(grad) for number, grad in enumerate(grads)}


def test_the_late_answer_is_of_the_last_question_and_is_given_once():
    late = DeferredFiniteCheck()
    assert late.answer() == []
    given = parameters([1.0, float("nan"), 3.0], [0.0, 0.0, 0.0])
    assert late.ask(given).item() is True
    given[0] = torch.ones(3)  # of the next step
    assert late.answer() == [0]
    assert late.answer() == []
    assert late.ask(given).item() is False
    assert late.answer() == []


def test_numbers_that_only_a_wider_type_can_hold_are_finite():
    given = {0: torch.ones(2, dtype=torch.float16), 1: torch.tensor([1e5, 1.0])}
    assert nonfinite(given) == []
    assert nonfinite(given | {2: torch.tensor([1.0, torch.nan], dtype=torch.float64)}) == [2]
