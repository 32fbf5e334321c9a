import itertools

import numpy as np
import pytest
import torch

from qpsbgd_paper.experiments import released
from qpsbgd_paper.experiments.released import Figure3, ReleasedThree, SignLayer, Step, agreement


@pytest.fixture
def adult():
    from qpsbgd_paper.datasets.adult import load_adult

    try:
        return load_adult()
    except (FileNotFoundError, OSError) as error:
        pytest.skip(str(error))


def agreed(rows, weights, spins):
    """The weighted sum of signs, row by row as the formula says."""
    signs = [1.0 if product + 0.01 > 0 else -1.0 for product in (rows @ spins).tolist()]
    return sum(weight * sign for weight, sign in zip(weights.tolist(), signs, strict=True))


def test_small_columns_are_answered_exactly():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 4, generator=generator)
    weights = torch.randn(7, 3, generator=generator)
    found = agreement(rows, weights)
    for column in range(3):
        best = max(agreed(rows, weights[:, column], torch.tensor(g)) for g in itertools.product((-1.0, 1.0), repeat=4))
        assert agreed(rows, weights[:, column], found[:, column]) == pytest.approx(best)


def test_wide_columns_end_where_no_flip_helps_and_above_their_start():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 20, generator=generator).sign()
    weights = torch.randn(40, 5, generator=generator)
    found = agreement(rows, weights)
    assert set(found.unique().tolist()) == {-1.0, 1.0}
    for column in range(5):
        own, reached = found[:, column], agreed(rows, weights[:, column], found[:, column])
        start = torch.where(rows.T @ weights[:, column] >= 0, 1.0, -1.0)
        assert reached >= agreed(rows, weights[:, column], start) - 1e-5
        for place in range(20):
            flipped = own.clone()
            flipped[place] *= -1
            # Margins, which break ties, are worth up to a hundredth of the weights.
            assert agreed(rows, weights[:, column], flipped) <= reached + 0.021 * weights[:, column].abs().sum()


def layer_after_backward(inputs=3, outputs=2):
    torch.manual_seed(0)
    layer = SignLayer(inputs, outputs)
    out = layer(torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]]))
    torch.autograd.backward((out * torch.tensor([1.0, 0.0])).sum())
    return layer


def test_outputs_are_signs_and_gradients_pass_where_products_are_small():
    layer = layer_after_backward()
    assert set(layer.outputs.unique().tolist()) <= {-1.0, 1.0}
    assert layer.outputs.grad[:, 1].eq(0).all()


@pytest.mark.parametrize("idle", [1.0, -1.0, 0.0])
def test_a_column_without_gradient_moves_as_a_solver_happens_to_answer(idle):
    layer = layer_after_backward()
    before = layer.latent.detach().clone()
    share = Step("agreement", 0.1, False, idle)(layer)
    change = layer.latent.detach() - before
    assert share == 0.5
    assert change[:, 0].abs().allclose(torch.tensor(0.1))
    assert change[:, 1].allclose(torch.tensor(0.1 * idle))


def test_without_an_objective_every_weight_moves_alike():
    layer = layer_after_backward()
    before = layer.latent.detach().clone()
    Step("all ones", 0.1, False, 1.0)(layer)
    assert (layer.latent.detach() - before).allclose(torch.tensor(0.1))


@pytest.mark.parametrize("method", ["frozen", "constant"])
def test_controls_move_nothing(method):
    layer = layer_after_backward()
    before = layer.latent.detach().clone()
    Step(method, 0.1, False, 1.0)(layer)
    assert layer.latent.equal(before)


def data(monkeypatch, columns=123):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(700, columns, generator=generator).sign()
    monkeypatch.setattr(released, "_load", lambda: (inputs, (inputs[:, 5] > 0).float()))


def run(experiment, case, line, seed=0, **changes):
    (found,) = (each for each in experiment.cases() if each.name == case)
    own = experiment.lines(found)[line]
    job = {**experiment.job(found, own, own.grid[0]), **changes}
    return experiment.work(case=case, line=line, **job, seed=seed, choosing=False)


AUTHORS, REPAIRED = "seeds 0 to 4", "seeds 0 to 4, repaired"


def test_sign_sgd_stands_still_as_released_and_moves_when_repaired(monkeypatch):
    data(monkeypatch)
    frozen = run(ReleasedThree(), AUTHORS, "frozen")["loss"]
    assert run(ReleasedThree(), AUTHORS, "bc-sign")["loss"] == frozen
    assert run(ReleasedThree(), REPAIRED, "bc-sign")["loss"] != frozen


def test_a_row_costs_one_of_two_losses(monkeypatch):
    data(monkeypatch)
    found = run(ReleasedThree(), AUTHORS, "constant")
    low, high = (torch.nn.functional.softplus(torch.tensor(x)).item() for x in (-1.0, 1.0))
    for loss, right in zip(found["loss"], found["accuracy"], strict=True):
        assert loss == pytest.approx(right * low + (1 - right) * high)


def test_as_released_only_the_first_of_ten_layers_is_updated(monkeypatch):
    data(monkeypatch)
    seen = []
    call = Step.__call__
    monkeypatch.setattr(Step, "__call__", lambda self, layer: seen.append(layer) or call(self, layer))
    small = {"widths": [123, 8, 8, 1], "updates": 2}
    run(Figure3(), "seeds 5 to 9", "bc-sgd", **small)
    assert len(set(seen)) == 1
    run(Figure3(), "seeds 5 to 9, repaired", "bc-sgd", **small)
    assert len(set(seen)) == 4


def test_rows_stand_in_the_notebooks_order_with_the_feature_of_number_k_in_column_k(adult):
    inputs, targets = released._load.__wrapped__()
    order = list(range(len(targets)))
    np.random.RandomState(2).shuffle(order)
    assert inputs[:, 0].eq(-1).all()
    assert inputs[0, 1:].equal(adult.train_inputs[order[0], :-1])
    assert targets[0] == adult.train_targets[order[0]]
