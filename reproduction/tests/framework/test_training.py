import pytest
import torch
from torch import nn

from qpsbgd_paper.framework.training import batches, fit, random_rows, second_half


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


def test_measurements_follow_every_so_many_steps():
    _, found, _ = traced(every=2)
    assert len(found) == 1


def test_learning_rates_fall_linearly_to_a_fiftieth_or_stay():
    rates = [entry[4] for entry in traced(falling_over=2)[0] if entry[0] == "loss"]
    assert rates == pytest.approx([1.0, 0.51, 0.02])
    assert [entry[4] for entry in traced()[0] if entry[0] == "loss"] == [1.0] * 3


def test_the_sum_of_the_losses_moves_as_many_times_further_as_a_batch_has_rows():
    start, mean, total = (traced_weight(**options) for options in ({"lr": 0.0}, {}, {"summed": True}))
    torch.testing.assert_close(total - start, 3 * (mean - start))


def traced_weight(*, lr=0.1, **options):
    torch.manual_seed(0)
    model, inputs = nn.Linear(2, 1), torch.randn(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    fit(model, lambda rows: model(inputs[rows]).mean(), rows=[torch.arange(3)], optimizers=[optimizer], **options)
    return model.weight.detach()


def test_every_optimizer_makes_a_step_per_batch():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    start = [parameter.clone() for parameter in model.parameters()]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    assert (
        fit(model, lambda rows: model(torch.ones(3, 2)[rows]).sum(), rows=[torch.arange(3)], optimizers=optimizers)
        == []
    )
    # The gradient of the last bias is the number of rows; it is not added to that of an earlier step.
    fit(model, lambda rows: model(torch.ones(3, 2)[rows]).sum(), rows=[torch.arange(3)], optimizers=optimizers)
    assert all((old != new).any() for old, new in zip(start, model.parameters(), strict=True))
    assert start[-1].item() - model[1].bias.item() == pytest.approx(2 * 0.1 * 3)


def test_batches_see_every_row_once_before_any_twice():
    rows = torch.cat(list(batches(10, 5, 4)))
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))


def test_random_rows_are_drawn_when_they_are_needed():
    torch.manual_seed(0)
    first, *_ = random_rows(100, 4, 3)
    torch.manual_seed(0)
    assert torch.equal(torch.randint(100, (4,)), first)
    assert [len(rows) for rows in random_rows(3, 4, 5)] == [4] * 5


def test_the_second_half_is_what_follows_the_middle():
    assert second_half([9.0, 1.0, 2.0]) == 1.5
    assert second_half([9.0, 9.0, 1.0, 2.0]) == 1.5
