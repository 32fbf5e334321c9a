import pytest
import torch

from qpsbgd_paper.datasets.adult import BALANCED_COLUMNS, THREE_COLUMNS, load_adult


@pytest.fixture
def real(real_data):
    return load_adult(data=real_data)


def test_the_rows_are_those_of_the_published_sets(real):
    assert real.train_inputs.shape == (1605, 123) and real.test_inputs.shape == (30956, 123)
    assert int((real.train_inputs > 0).sum()) == 22_249 and int((real.test_inputs > 0).sum()) == 429_343
    assert int(real.train_targets.sum()) == 395 and int(real.test_targets.sum()) == 7_446
    for tensor in (real.train_inputs, real.train_targets, real.test_inputs, real.test_targets):
        assert tensor.dtype == torch.float32


def test_the_balanced_columns_are_the_fifteen_with_a_mean_between_021_and_079(real):
    means = (real.train_inputs > 0).double().mean(dim=0)
    assert tuple(((means > 0.21) & (means < 0.79)).nonzero().flatten().tolist()) == BALANCED_COLUMNS
    assert len(BALANCED_COLUMNS) == 15 and set(THREE_COLUMNS) <= set(BALANCED_COLUMNS)


def test_features_that_are_on_are_plus_one_and_all_others_minus_one(publish):
    folder = publish({"adult/a1a": b"-1 1:1 3:1 \n+1 119:1 \n", "adult/a1a.t": b"+1 123:1 \n"})
    adult = load_adult(data=folder)
    expected = -torch.ones(2, 123)
    expected[0, 0] = expected[0, 2] = expected[1, 118] = 1
    assert torch.equal(adult.train_inputs, expected)
    assert adult.train_targets.tolist() == [0, 1] and adult.test_targets.tolist() == [1]
    assert adult.test_inputs[0, 122] == 1 and adult.test_inputs.sum() == -121
