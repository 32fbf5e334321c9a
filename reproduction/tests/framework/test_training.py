import pytest
import torch
from torch import nn

from qpsbgd_paper.framework.training import batches, fit


def traced(**options):
    """What happens while a linear model is trained on three batches, in order."""
    seen = []
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = torch.randn(6, 2)

    def loss(rows):
        seen.append(("loss", rows.tolist(), model.training, torch.is_grad_enabled(), optimizer.param_groups[0]["lr"]))
        return model(inputs[rows]).square().mean()

    def look(name):
        seen.append((name, model.training, torch.is_grad_enabled()))
        return len(seen)

    rows = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5])]
    found = fit(
        model, loss, rows=rows, optimizers=[optimizer], measure=lambda: look("after"), before=lambda: look("before"),
        **options,
    )  # fmt: skip
    return seen, found, model


def test_the_model_trains_in_training_mode_and_is_measured_in_evaluation_mode_without_gradients():
    seen, found, _ = traced()
    assert [entry[0] for entry in seen] == ["before", "loss", "after"] * 3
    assert all(entry[2:4] == (True, True) for entry in seen if entry[0] == "loss")
    assert all(entry[1:] == (False, False) for entry in seen if entry[0] != "loss")
    assert [entry[1] for entry in seen if entry[0] == "loss"] == [[0, 1], [2, 3], [4, 5]]
    assert found == [3, 6, 9]


def test_learning_rates_fall_linearly_to_a_fiftieth_or_stay():
    rates = [entry[4] for entry in traced(falling_over=2)[0] if entry[0] == "loss"]
    assert rates == pytest.approx([1.0, 0.51, 0.02])
    assert [entry[4] for entry in traced()[0] if entry[0] == "loss"] == [1.0] * 3


def test_batches_see_every_row_once_before_any_twice():
    rows = torch.cat(list(batches(10, 5, 4)))
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))
